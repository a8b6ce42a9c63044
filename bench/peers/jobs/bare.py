"""The bare client, the limit of all: `bare.py consume|parse|produce PARTITION,… PROCESSES`. Prints when it began
and ended, and how many, as JSON. It begins when all processes have their first records: how they start is not counted."""

import json
import os
import sys
import time
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition


class Reading(msgspec.Struct):
    house_id: str
    load_kw: float
    at: str


what, parts, processes = sys.argv[1], [int(each) for each in sys.argv[2].split(",")], int(sys.argv[3])
servers = {"bootstrap.servers": os.environ["BENCH_SERVERS"]}
consumer = Consumer(servers | {"group.id": os.environ["BENCH_ID"], "auto.offset.reset": "earliest"})
left = 0
places = []
for part in parts:
    low, high = consumer.get_watermark_offsets(TopicPartition("readings", part), timeout=30)
    left += high - low
    places.append(TopicPartition("readings", part, low))
consumer.assign(places)
producer = Producer(servers | {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
decode = msgspec.json.Decoder(Reading).decode
output = os.environ["BENCH_OUTPUT"]
count, begun = left, 0.0


def wait_for_all() -> None:
    folder = Path(os.environ["BENCH_FOLDER"])
    (folder / f"ready-{os.getpid()}").touch()
    while len(list(folder.glob("ready-*"))) < processes:
        time.sleep(0.005)


while left > 0:
    # It waits for as many as it is asked for.
    batch = consumer.consume(min(left, 10_000), 1.0)
    if batch and not begun:
        wait_for_all()
        begun = time.time()
    for message in batch:
        if what == "parse":
            decode(message.value())
        elif what == "produce":
            while True:
                try:
                    producer.produce(output, message.value(), key=message.key())
                    break
                except BufferError:
                    producer.poll(0.05)
    producer.poll(0)
    left -= len(batch)
producer.flush()
print(json.dumps({"begun": begun, "ended": time.time(), "count": count}), flush=True)
consumer.close()
