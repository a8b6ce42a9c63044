import sys, time, json, subprocess, random, tempfile, pathlib, secrets, collections
from datetime import datetime, UTC, timedelta
from riverrun.testing.pytest_plugin import local_kafka
from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
chance=random.Random(7); tmp=pathlib.Path(tempfile.mkdtemp(dir="/tmp/alerts-core"))
with local_kafka(tmp/"kafka", KafkaSettings()) as running:
    addr=running.bootstrap_servers; c=Connection(KafkaSettings(bootstrap_servers=addr)); Admin(c).create_topic("t",partitions=4,replicas=0,config={})
    out=tmp/"sent"; out.touch()
    def start(): return subprocess.Popen(["/work/main/.venv/bin/python","/tmp/alerts-core/child.py",addr,"town","t",str(out)])
    p=start()
    while "ready" not in out.read_text(): time.sleep(0.1)
    expected=set(); kills=0; H=200; state={}; number={}
    sent_at={}
    with Producer(c) as prod:
        t0=datetime.now(UTC); 
        for minute in range(30):
            for h in range(H):
                load=chance.choice([1.0,1.9,2.5]); k=f"h{h}"
                at=(t0+timedelta(minutes=minute)).isoformat()
                now=time.time_ns()//1_000_000
                prod.send_soon("t",json.dumps({"house_id":k,"load_kw":load,"phone":"+"+k,"at":at}),key=k)
                if load>2 and not state.get(k): state[k]=1; number[k]=number.get(k,0)+1; i=json.dumps(["overload",k,number[k],"fired","+"+k],separators=(",",":")); expected.add(i); sent_at[i]=now
                elif load<1.8 and state.get(k): state[k]=0; i=json.dumps(["overload",k,number[k],"resolved","+"+k],separators=(",",":")); expected.add(i); sent_at[i]=now
            prod.flush(); time.sleep(0.4)
            if minute%4==2: p.kill(); p.wait(); kills+=1; p=start()
    end=time.time()+60
    while time.time()<end:
        got=collections.Counter(l.split("\t")[0] for l in out.read_text().splitlines() if not l.startswith("ready"))
        if set(got)>=expected: break
        time.sleep(0.3)
    time.sleep(2)
    rows=[l.split("\t") for l in out.read_text().splitlines() if not l.startswith("ready")]
    got=collections.Counter(r[0] for r in rows)
    print("kills",kills,"expected",len(expected),"got",len(got),"missing",len(expected-set(got)),"extra",len(set(got)-expected),"twice",sum(v>1 for v in got.values()))
    # latency, one at a time, quiet
    lat=[]
    n=len(rows)
    with Producer(c) as prod:
        for i in range(100):
            k=f"x{i}"; now=time.time_ns()//1_000_000
            prod.send("t",json.dumps({"house_id":k,"load_kw":3.0,"phone":"+"+k,"at":datetime.now(UTC).isoformat()}),key=k)
            d=time.time()+5
            while time.time()<d:
                ls=out.read_text().splitlines()
                hit=[l for l in ls if l.startswith(f'["overload","{k}",')]
                if hit: lat.append(int(hit[0].split("\t")[1])-now); break
                time.sleep(0.005)
    lat.sort(); print("event to request ms p50",lat[len(lat)//2],"p99",lat[-2],"max",lat[-1],"n",len(lat))
    p.kill(); p.wait()
