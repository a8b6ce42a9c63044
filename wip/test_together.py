"""Rules, ledger and sender together: killed anywhere, each message reaches the provider once."""

import random

import pytest

from riverrun.alerts.channels.contract import Answer, NotNow, Unsure
from riverrun.alerts.engine import Engine
from riverrun.alerts.sender import Policy, Sending, attempt
from support.alerting import ScriptedChannel
from support.watching import NOON, CrashError, MemoryLog, record, rule


class Provider(ScriptedChannel):
    """Takes a message, does not, or takes it and does not answer, by chance; counts what its owner's phone shows."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.shown: dict[str, int] = {}

    def send(self, message, provider_id):  # type: ignore[no-untyped-def]
        answer: Answer | None = self.chance.choice([None, None, None, NotNow("busy"), Unsure("no answer"), "lost"])
        if answer is None or answer == "lost":
            if provider_id not in self.has:
                self.shown[message.id] = self.shown.get(message.id, 0) + 1
            self.has.add(provider_id)
        if answer == "lost":
            return Unsure("the answer was lost")
        from riverrun.alerts.channels.contract import Accepted

        return answer if answer is not None else Accepted(provider_id)


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_shown_once(seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        record(offset, offset // 10, chance.choice([1.0, 1.9, 2.5]), f"h{offset % 10}") for offset in range(400)
    ]
    rules = [rule(clear="load_kw < 1.8", resolved="House {house_id} is back.", expires="forever")]
    crashes = {step: chance.choice(["before", "after"]) for step in chance.sample(range(2, 120), 25)}
    log, provider = MemoryLog(records=rows, crashes=crashes), Provider(chance)
    now, killed = NOON, 0
    while True:
        try:
            engine = Engine(rules, log, clock=lambda: now)
            sending = Sending(engine, {"sms": provider}, policy=Policy(first_wait=10, most_wait=100), notice=lambda _: None)
            idle = 0
            while idle < 200:
                idle = 0 if engine.step() else idle + 1
                now += 50
                tries = sending.begin(now)
                if chance.random() < 0.02 and tries:
                    for each in tries:
                        attempt(provider, each)
                    raise CrashError
                sending.finish([(each, attempt(provider, each)) for each in tries], now)
                idle = 0 if engine.due(now + 10_000) else idle
            break
        except CrashError:
            killed += 1
    letters = engine.desk.ledger.letters
    assert killed > 10
    assert set(provider.shown) == set(letters)
    assert len(letters) > 50
    assert set(provider.shown.values()) == {1}
