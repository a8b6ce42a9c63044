import sys, time, os
sys.path.insert(0,"/work/wt/alerts-core/tests")
from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.alerts.kafka_log import KafkaLog
from riverrun.alerts.engine import Engine
from riverrun.alerts.channels.contract import Delivery
from support.watching import rule, table
addr, app, topic, out = sys.argv[1:5]
c=Connection(KafkaSettings(bootstrap_servers=addr))
rules=[rule(over=table(name=topic,topic=topic),clear="load_kw < 1.8",resolved="back {house_id}",expires="forever")]
f=open(out,"a",buffering=1)
log=KafkaLog(c,app,[topic]); e=Engine(rules,log)
f.write("ready\t0\n")
while True:
    e.step(); now=time.time_ns()//1_000_000
    due=e.due(now)
    if not due: continue
    fresh={m.id:Delivery(state="trying",tries=1) for m,d in due if d.state!="trying"}
    taken=set(l.split("\t")[0] for l in open(out)) if len(fresh)<len(due) else set()
    if fresh: e.moved(fresh)
    for m,d in due:
        if m.id in fresh or m.id not in taken: f.write(f"{m.id}\t{time.time_ns()//1_000_000}\n")
    e.moved({m.id:Delivery(state="sent",tries=1) for m,_ in due})
