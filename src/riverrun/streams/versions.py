"""Every stream's code against what its checkpoint was made by, before anything starts; and the versions, written down."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from riverrun.errors import ChangedError, CheckpointError
from riverrun.kafka.admin.admin import Admin
from riverrun.model.state import Place
from riverrun.streams.blueprint import FILE, Blueprint, History, blueprint_of
from riverrun.streams.books import read_account, read_rate, streamed_to
from riverrun.streams.change import Change, judge, judge_history
from riverrun.streams.checkpoint import Offsets, Position, has_read, read_position, remove_checkpoint
from riverrun.streams.compiler import Compilation
from riverrun.streams.generations import checkpoint_of
from riverrun.streams.remote_files import HadoopFolder, checkpoint_folder
from riverrun.streams.topic_watch import went_back

# Under this name in a stream's folder: the ids of the topics that it reads. One that is made again has another.
TOPICS = "topics.json"


@dataclass
class Versions:
    """The versions of the streams of one app. `folder` has a folder for each stream, `checkpoints` its checkpoint."""

    done: Compilation
    admin: Admin
    folder: Path
    checkpoints: str
    notice: Callable[[str], None]
    # Into how many parts the user wants state split; 0 when nothing is said.
    parts: int = 0
    # What each stream's file is to say when it starts.
    _next: dict[str, History] = field(default_factory=dict)
    _made: dict[str, Blueprint] = field(default_factory=dict)
    # Streams whose checkpoint is of other code and has read nothing.
    _void: set[str] = field(default_factory=set)
    # The verdict on each stream, when all were judged.
    found: dict[str, Change] = field(default_factory=dict)

    def judge(
        self, names: Collection[str], *, once: Collection[str], fresh: Collection[str], keep: Collection[str]
    ) -> None:
        """The verdict on each stream. ChangedError, with all of them, where one cannot go on.

        `once` are those that run as one batch and have no checkpoint: only what readers of their rows can take counts there.
        """
        found = self.found
        problems: list[str] = []
        new: list[str] = []
        for name in names:
            blueprint = self._made[name] = blueprint_of(self.done, name)
            try:
                history = History.read(self.folder / name / FILE)
            except CheckpointError:
                if name not in fresh:
                    raise
                history = History()
            if not history.versions:
                new.append(name)
            if name in once or name in fresh or not self._has_checkpoint(name):
                found[name] = self._begin_anew(name, history, blueprint, write=name not in once)
            elif self._is_unread(name):
                found[name] = self._unread(name, history, blueprint)
            elif lost := self._lost(name, history, insists=name in keep):
                found[name] = Change("fresh", (lost,))
                problems.append(lost)
                continue
            else:
                found[name] = self._go_on(name, history, blueprint, insists=name in keep)
            if found[name].kind in ("fresh", "refused"):
                problems.append(f"{self._problem(name, found[name], insists=name in keep)}.")
        if problems:
            blocked = [name for name in names if found[name].kind in ("fresh", "refused")]
            raise ChangedError(problems, streams=", ".join(blocked))
        for name, change in found.items():
            self._tell(name, change)
        for each in self._left_behind(new):
            self.notice(each)

    def begin(self, name: str) -> None:
        """Write down what a stream runs as, and which topics it reads; right before it starts."""
        if name in self._void:
            remove_checkpoint(self.done.spark, str(self._checkpoint(name)))
        if name in self._next:
            self._next[name].write(self.folder / name / FILE)
            _write(self.folder / name / TOPICS, self.topic_ids([name]))

    # --- one stream ---------------------------------------------------------------------------------------------------

    def _begin_anew(self, name: str, history: History, blueprint: Blueprint, *, write: bool) -> Change:
        last = history.last
        if write and last is not None and last.fresh and last.fingerprint == blueprint.fingerprint:
            # It was to begin anew already, and has not.
            self._next[name] = history
        elif write:
            self._next[name] = history.begin(blueprint, fresh=True)
        if last is None or last.blueprint.target != blueprint.target:
            return Change("new")
        found = judge(last.blueprint, blueprint, [each.blueprint for each in history.versions[:-1]])
        return found if found.kind == "refused" and self._has_rows(blueprint.target) else Change("new")

    def _is_unread(self, name: str) -> bool:
        """Whether it has started before and there was nothing to read: nothing of it is worth keeping."""
        account, _ = read_account(self.folder / name / "account.json")
        return not (account.read or account.note or has_read(self._checkpoint(name)))

    def _unread(self, name: str, history: History, blueprint: Blueprint) -> Change:
        change = judge_history(history, blueprint)
        if change.kind == "unchanged" and not self._made_anew(name) and not self._cut_short(name):
            return self._go_on(name, history, blueprint, insists=False)
        # What Spark has made for the old code is removed when it starts.
        self._void.add(name)
        return self._begin_anew(name, history, blueprint, write=True)

    def _go_on(self, name: str, history: History, blueprint: Blueprint, *, insists: bool) -> Change:
        position = self._position(name)
        if not history.versions:
            # It is here because the user insists (`_unknown`).
            self._next[name] = self._more(history, blueprint, position)
            return Change("kept", ("which code it ran as before is not known here", "you say that it is this one"))
        history = history.that_ran(position.ended, position.begun)
        change = judge_history(history, blueprint)
        if change.kind == "fresh" and insists and change.may_keep:
            change = Change("kept", (*change.reasons, "its state is kept because you say so"), True, change.back_to)
        if change.kind == "unchanged":
            self._next[name] = history
        elif change.kind in ("compatible", "kept"):
            self._next[name] = self._more(history, blueprint, position)
        if self.parts and position.parts and blueprint.stateful and position.parts != self.parts:
            self.notice(
                f"{name} keeps its state in {position.parts} parts, as it began: Spark cannot split it anew. "
                f"spark.shuffle_partitions={self.parts} counts for it after `--fresh {name}`"
            )
        return change

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """The ids of the topics that streams read now."""
        found = self.admin.topics(
            list(dict.fromkeys(t for name in names for t in self.done.sources(name))), config=False
        )
        return {topic: state.topic_id for topic, state in found.items()}

    def _made_anew(self, name: str) -> str:
        """Which topic it has read that is another one by now: where it stood means nothing there, and it would skip rows."""
        before = _read(self.folder / name / TOPICS)
        for topic, now in self.topic_ids([name]).items():
            if before.get(topic, now) != now:
                return (
                    f"{topic}, which it reads, was deleted and made again since. The place where it stood was in the old "
                    "one; it has to begin at the first record of the new one"
                )
        return ""

    def _lost(self, name: str, history: History, *, insists: bool) -> str:
        """Why a stream cannot go on from its checkpoint, whatever its code is now."""
        if not insists and (unknown := self._unknown(name, history)):
            return f"{name} is not started: {unknown}"
        lost = self._made_anew(name) or self._cut_short(name)
        return f"{name} cannot go on: {lost}. `riverrun run {self._file} --fresh {name}` does." if lost else ""

    def _unknown(self, name: str, history: History) -> str:
        """Why it cannot be told whether a checkpoint goes with this code and these topics: what is written down of both is
        in the project that ran it, and this one may be another, beside a checkpoint that both see."""
        own = self.folder / name
        if history.versions and (own / TOPICS).exists():
            return ""
        missing = own / TOPICS if history.versions else own / FILE
        return (
            f"it has a checkpoint, {self._checkpoint(name)}, and {missing} is not there. Which code and which topics the "
            f"checkpoint was made by is not known here, and rows could be lost or wrong. Copy the folder {own} from the "
            f"project that ran it last, perhaps on another host. `riverrun run {self._file} --fresh {name}` reads "
            f"everything again; `--keep-state {name}` goes on, if you know that its code and topics are the same."
        )

    def _cut_short(self, name: str) -> str:
        """Where a log ends before what was read of it, or a checkpoint before what was counted: Spark would go on from
        there without a word, and records of both sides be missing or counted twice."""
        read = self._position(name).end
        parts = {topic: len(state.partitions) for topic, state in self.admin.topics(list(read), config=False).items()}
        places = [Place(topic, part) for topic in parts for part in read[topic] if part < parts[topic]]
        ends: Offsets = {}
        for place, offset in self.admin.offsets(places, "latest").items():
            ends.setdefault(place.topic, {})[place.partition] = offset
        if back := went_back(read, ends):
            return f"it has read {back}. The end of that log was lost, or the topic made again"
        if back := went_back(streamed_to(self.folder / name / "account.json"), read):
            return f"it has read and counted {back}, or its checkpoint is an old one"
        return ""

    def _more(self, history: History, blueprint: Blueprint, position: Position) -> History:
        return history.begin(blueprint, since_batch=position.begun + 1, after=position.ended, begin=position.end)

    def _has_checkpoint(self, name: str) -> bool:
        return (self._checkpoint(name) / "metadata").exists()

    def _position(self, name: str) -> Position:
        return read_position(self._checkpoint(name))

    def _checkpoint(self, name: str) -> Path | HadoopFolder:
        return checkpoint_folder(self.done.spark, checkpoint_of(self.checkpoints, self.folder / name))

    # --- words --------------------------------------------------------------------------------------------------------

    def _tell(self, name: str, change: Change) -> None:
        if change.kind == "compatible":
            self.notice(
                f"{name} has changed: {change.because}. The new code counts from the next record on; "
                "rows from before stay as they are"
            )
        elif change.kind == "kept":
            self.notice(f"{name} has changed: {change.because}. Its state is kept, and it goes on from where it was")
        elif change.reasons:
            self.notice(f"{name} goes on from where it was: {change.because}")

    def _problem(self, name: str, change: Change, *, insists: bool) -> str:
        file = self._file
        run = f"riverrun run {file}"
        topic = self.done.streams[name].stream.target
        if change.kind == "refused":
            return (
                f"{name} is refused, because readers of {topic} have rows of another kind: {change.because}. "
                f'Give it a topic of its own, `topic="{topic}_2"`, and `{run} --fresh {name}`; or, when nobody needs the '
                f"rows so far, with Kafka running (`riverrun up --detach`) `riverrun topics delete {topic}`, "
                f"`{run} {self._fresh_with_readers(name)}`, and `riverrun tables remove {topic}` for the rows in its table"
            )
        text = f"{name} needs fresh state: {change.because}. {self._again(name)} "
        text += (
            f"`riverrun replay {file} {name}` does it without rows that are there twice; "
            f"`{run} --fresh {name}` sends all its rows to {topic} again"
        )
        if change.may_keep:
            text += f"; `{run} --keep-state {name}` goes on with what the old code has put into its state"
        elif insists:
            text += ". --keep-state does not help: Spark could not use the state, or would use it wrongly"
        return text

    def _fresh_with_readers(self, name: str) -> str:
        """What begins anew together with a topic: the stream that writes it and those that read it."""
        topic = self.done.streams[name].stream.target
        readers = [each for each in self.done.streams if topic in self.done.sources(each)]
        return " ".join(f"--fresh {each}" for each in [name, *readers])

    @property
    def _file(self) -> str:
        """The pipeline file, as it can be typed here."""
        file = self.done.graph.app.file
        here = f"{Path.cwd()}/"
        return file.removeprefix(here)

    def _again(self, name: str) -> str:
        """How much is to be read, and how long that takes if it is known."""
        # Offsets, of which some may be markers of transactions: no more records than these.
        most = sum(self._size(topic) for topic in self.done.sources(name))
        rate = read_rate(self.folder / name / "account.json")
        text = f"It reads up to {most:,} record{'s' if most != 1 else ''} again, from the first there is"
        if rate and most:
            text += f", in about {_duration(most / rate)} at the {rate:,.0f} a second it has reached"
        return f"{text}."

    def _size(self, topic: str) -> int:
        state = self.admin.topics([topic], config=False).get(topic)
        if state is None:
            return 0
        places = [Place(topic, part) for part in range(len(state.partitions))]
        first, last = self.admin.offsets(places, "earliest"), self.admin.offsets(places, "latest")
        return sum(last[place] - first[place] for place in places)

    def _has_rows(self, topic: str) -> bool:
        return self._size(topic) > 0

    def _left_behind(self, new: Collection[str]) -> Iterator[str]:
        """Streams that have run and that the file has no more; perhaps under another name."""
        app = self.done.graph.app
        folders = sorted(self.folder.iterdir()) if self.folder.exists() else []
        for folder in folders:
            if folder.name in app.streams or not (folder / FILE).exists():
                continue
            try:
                last = History.read(folder / FILE).last
            except CheckpointError:
                last = None
            like = [name for name in new if last is not None and self._made[name].fingerprint == last.fingerprint]
            if like:
                yield (
                    f"{like[0]} does what {folder.name} did, which is not in {self._file} any more: it is a new stream, and "
                    f"reads from the first record. To go on from where {folder.name} was, give it its name back"
                )
            else:
                yield (
                    f"{folder.name} has run and is not in {self._file} any more. What it left behind: its topic, its group "
                    f"{app.name}.{folder.name}, {folder}"
                )


def changes_of(done: Compilation, folder: Path) -> dict[str, Change]:
    """The verdict on every stream of an app by what is written down, without a broker."""
    return {name: judge_history(History.read(folder / name / FILE), blueprint_of(done, name)) for name in done.streams}


def _read(file: Path) -> dict[str, str]:
    try:
        return {str(topic): str(made) for topic, made in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _write(file: Path, topics: dict[str, str]) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(topics), encoding="utf-8")
    temporary.replace(file)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
