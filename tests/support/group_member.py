"""One member of a consumer group, as a program: `python group_member.py SERVERS TOPIC GROUP FILE`.

Each record it has handled is a line `partition offset` of the file, written before the record counts as done, so that
the file is true after kill -9.
"""

import os
import sys

import riverrun as rr


def main() -> None:
    servers, topic, group, path = sys.argv[1:]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(record: rr.Record[object]) -> None:
        os.write(descriptor, b"%d %d\n" % (record.partition, record.offset))

    with rr.Consumer(
        topic, group=group, connection=rr.connect(servers), session_timeout_seconds=6, commit_interval_seconds=0.5
    ) as consumer:
        consumer.run(handle, workers=4)


if __name__ == "__main__":
    main()
