"""Compares every stream's code with the code its checkpoint was made by, before anything starts, and saves the versions."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from riverrun.errors import CheckpointError, StreamChangedError
from riverrun.kafka.admin.admin import Admin
from riverrun.model.cluster_state import TopicPartition
from riverrun.streams.checkpoint import CheckpointOffsets, Offsets, has_read, read_checkpoint_offsets, remove_checkpoint
from riverrun.streams.checkpoint_files import HadoopFolder, checkpoint_folder
from riverrun.streams.compile.compiler import Compilation
from riverrun.streams.compile.fingerprint import HISTORY_FILE, StreamFingerprint, VersionHistory, compute_fingerprint
from riverrun.streams.evolve.change import CodeChange, compare_fingerprints, compare_with_history
from riverrun.streams.generations import checkpoint_path
from riverrun.streams.run.progress import (
    UNREADABLE_COUNTS,
    read_peak_rate,
    read_record_counts,
    read_streamed_offsets,
)
from riverrun.streams.run.topic_watch import find_offset_regression

# Under this name in a stream's folder: the ids of the topics that it reads. One that is made again has another.
TOPIC_IDS_FILE = "topics.json"


@dataclass
class VersionChecker:
    """The versions of the streams of one app. `folder` has a folder for each stream, `checkpoints` its checkpoint."""

    compilation: Compilation
    admin: Admin
    folder: Path
    checkpoints: str
    notice: Callable[[str], None]
    # The number of state partitions that the user wants; 0 if not set.
    shuffle_partitions: int = 0
    # The history that is written for each stream when it starts.
    _new_histories: dict[str, VersionHistory] = field(default_factory=dict)
    _fingerprints: dict[str, StreamFingerprint] = field(default_factory=dict)
    # Streams whose checkpoint is of other code or topics and has read nothing.
    _unused_checkpoints: set[str] = field(default_factory=set)
    # The change of each stream, after `check`.
    changes: dict[str, CodeChange] = field(default_factory=dict)

    def check(
        self,
        names: Collection[str],
        *,
        batch_only: Collection[str],
        fresh: Collection[str],
        keep_state: Collection[str],
    ) -> None:
        """The verdict on each stream. StreamChangedError, with all of them, where one cannot go on.

        `batch_only` are those that run as one batch and have no checkpoint: only what readers of their rows can take counts
        there.
        """
        changes = self.changes
        problems: list[str] = []
        new_streams: list[str] = []
        for name in names:
            fingerprint = self._fingerprints[name] = compute_fingerprint(self.compilation, name)
            try:
                history = VersionHistory.read(self.folder / name / HISTORY_FILE)
            except CheckpointError:
                if name not in fresh:
                    raise
                history = VersionHistory()
            if not history.versions:
                new_streams.append(name)
            if name in batch_only or name in fresh or not self._has_checkpoint(name):
                changes[name] = self._start_fresh(name, history, fingerprint, write=name not in batch_only)
            elif self._is_unread(name):
                changes[name] = self._restart_unread(name, history, fingerprint)
            elif loss := self._lost(name, history, insists=name in keep_state):
                changes[name] = CodeChange("fresh", (loss,))
                problems.append(loss)
                continue
            else:
                changes[name] = self._resume(name, history, fingerprint, keep_state=name in keep_state)
            if changes[name].kind in ("fresh", "refused"):
                problems.append(f"{self._problem(name, changes[name], keep_state=name in keep_state)}.")
        if problems:
            blocked = [name for name in names if changes[name].kind in ("fresh", "refused")]
            raise StreamChangedError(problems, streams=", ".join(blocked))
        for name, change in changes.items():
            self._report(name, change)
        for each in self._removed_streams(new_streams):
            self.notice(each)

    def record_start(self, name: str) -> None:
        """Save the code version of a stream and the ids of the topics it reads; right before it starts."""
        if name in self._unused_checkpoints:
            remove_checkpoint(self.compilation.spark, str(self._checkpoint(name)))
        if name in self._new_histories:
            self._new_histories[name].write(self.folder / name / HISTORY_FILE)
            _write_topic_ids(self.folder / name / TOPIC_IDS_FILE, self.topic_ids([name]))

    # --- one stream ---------------------------------------------------------------------------------------------------

    def _start_fresh(
        self, name: str, history: VersionHistory, fingerprint: StreamFingerprint, *, write: bool
    ) -> CodeChange:
        last = history.last
        if write and last is not None and last.fresh and last.digest == fingerprint.digest:
            # It was to begin again already, and has not.
            self._new_histories[name] = history
        elif write:
            self._new_histories[name] = history.add_version(fingerprint, fresh=True)
        if last is None or last.fingerprint.target != fingerprint.target:
            return CodeChange("new")
        change = compare_fingerprints(
            last.fingerprint, fingerprint, [version.fingerprint for version in history.versions[:-1]]
        )
        return change if change.kind == "refused" and self._has_rows(fingerprint.target) else CodeChange("new")

    def _is_unread(self, name: str) -> bool:
        """Whether it has started before and there was nothing to read: nothing of it is worth keeping."""
        account, _ = read_record_counts(self.folder / name / "record_counts.json")
        # Other notes say how records of such a stream are counted, also when there was none.
        return not (account.read or account.note == UNREADABLE_COUNTS or has_read(self._checkpoint(name)))

    def _restart_unread(self, name: str, history: VersionHistory, fingerprint: StreamFingerprint) -> CodeChange:
        change = compare_with_history(history, fingerprint)
        if change.kind == "unchanged" and not self._recreated_topic(name) and not self._lost_records(name):
            return self._resume(name, history, fingerprint, keep_state=False)
        # What Spark has made for the old code is removed when it starts.
        self._unused_checkpoints.add(name)
        return self._start_fresh(name, history, fingerprint, write=True)

    def _resume(
        self, name: str, history: VersionHistory, fingerprint: StreamFingerprint, *, keep_state: bool
    ) -> CodeChange:
        offsets = self._checkpoint_offsets(name)
        if not history.versions:
            # It is here because the user insists (`_unknown`).
            self._new_histories[name] = self._with_new_version(history, fingerprint, offsets)
            return CodeChange("kept", ("which code it ran as before is not known here", "you say that it is this one"))
        history = history.without_unused_version(offsets.committed_batch, offsets.planned_batch)
        change = compare_with_history(history, fingerprint)
        if change.kind == "fresh" and keep_state and change.can_keep_state:
            change = CodeChange(
                "kept", (*change.reasons, "its state is kept because you say so"), True, change.restored_version
            )
        if change.kind == "unchanged":
            self._new_histories[name] = history
        elif change.kind in ("compatible", "kept"):
            self._new_histories[name] = self._with_new_version(history, fingerprint, offsets)
        if (
            self.shuffle_partitions
            and offsets.state_partitions
            and fingerprint.stateful
            and offsets.state_partitions != self.shuffle_partitions
        ):
            self.notice(
                f"{name} keeps its state in {offsets.state_partitions} parts, as it began: Spark cannot split it anew. "
                f"spark.shuffle_partitions={self.shuffle_partitions} counts for it after `--fresh {name}`"
            )
        return change

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """The ids of the topics that streams read now."""
        topics = self.admin.topics(
            list(dict.fromkeys(t for name in names for t in self.compilation.sources(name))), config=False
        )
        return {topic: state.topic_id for topic, state in topics.items()}

    def _recreated_topic(self, name: str) -> str:
        """Why it cannot go on if a topic it reads was created again: its offset means nothing there, and it would skip
        rows."""
        known_ids = _read_topic_ids(self.folder / name / TOPIC_IDS_FILE)
        for topic, topic_id in self.topic_ids([name]).items():
            if known_ids.get(topic, topic_id) != topic_id:
                return (
                    f"{topic}, which it reads, was deleted and made again since. The place where it stood was in the old "
                    "one; it has to begin at the first record of the new one"
                )
        return ""

    def _lost(self, name: str, history: VersionHistory, *, insists: bool) -> str:
        """Why a stream cannot go on from its checkpoint, whatever its code is now."""
        if not insists and (unknown := self._unknown(name, history)):
            return f"{name} is not started: {unknown}"
        lost = self._recreated_topic(name) or self._lost_records(name)
        return f"{name} cannot go on: {lost}. `riverrun run {self._file} --fresh {name}` does." if lost else ""

    def _unknown(self, name: str, history: VersionHistory) -> str:
        """Why it cannot be told whether a checkpoint goes with this code and these topics: what is written down of both is
        in the project that ran it, and this one may be another, beside a checkpoint that both see."""
        own = self.folder / name
        if history.versions and (own / TOPIC_IDS_FILE).exists():
            return ""
        missing = own / TOPIC_IDS_FILE if history.versions else own / HISTORY_FILE
        return (
            f"it has a checkpoint, {self._checkpoint(name)}, and {missing} is not there. Which code and which topics the "
            f"checkpoint was made by is not known here, and rows could be lost or wrong. Copy the folder {own} from the "
            f"project that ran it last, perhaps on another host. `riverrun run {self._file} --fresh {name}` reads "
            f"everything again; `--keep-state {name}` goes on, if you know that its code and topics are the same."
        )

    def _lost_records(self, name: str) -> str:
        """Where a log ends before what was read of it, or a checkpoint before what was counted: Spark would go on from
        there without a word, and records of both sides be missing or counted twice."""
        read = self._checkpoint_offsets(name).end
        parts = {topic: len(state.partitions) for topic, state in self.admin.topics(list(read), config=False).items()}
        places = [TopicPartition(topic, part) for topic in parts for part in read[topic] if part < parts[topic]]
        ends: Offsets = {}
        for place, offset in self.admin.offsets(places, "latest").items():
            ends.setdefault(place.topic, {})[place.partition] = offset
        if regression := find_offset_regression(read, ends):
            return f"it has read {regression}. The end of that log was lost, or the topic made again"
        if regression := find_offset_regression(read_streamed_offsets(self.folder / name / "record_counts.json"), read):
            return f"it has read and counted {regression}, or its checkpoint is an old one"
        return ""

    def _with_new_version(
        self, history: VersionHistory, fingerprint: StreamFingerprint, offsets: CheckpointOffsets
    ) -> VersionHistory:
        return history.add_version(
            fingerprint, since_batch=offsets.planned_batch + 1, after_batch=offsets.committed_batch, begin=offsets.end
        )

    def _has_checkpoint(self, name: str) -> bool:
        return (self._checkpoint(name) / "metadata").exists()

    def _checkpoint_offsets(self, name: str) -> CheckpointOffsets:
        return read_checkpoint_offsets(self._checkpoint(name))

    def _checkpoint(self, name: str) -> Path | HadoopFolder:
        return checkpoint_folder(self.compilation.spark, checkpoint_path(self.checkpoints, self.folder / name))

    # --- text ---------------------------------------------------------------------------------------------------------

    def _report(self, name: str, change: CodeChange) -> None:
        if change.kind == "compatible":
            self.notice(
                f"{name} has changed: {change.reason_text}. The new code counts from the next record on; "
                "rows from before stay as they are"
            )
        elif change.kind == "kept":
            self.notice(
                f"{name} has changed: {change.reason_text}. Its state is kept, and it goes on from where it was"
            )
        elif change.reasons:
            self.notice(f"{name} goes on from where it was: {change.reason_text}")

    def _problem(self, name: str, change: CodeChange, *, keep_state: bool) -> str:
        file = self._file
        run = f"riverrun run {file}"
        topic = self.compilation.streams[name].stream.output_topic
        if change.kind == "refused":
            return (
                f"{name} is refused, because readers of {topic} have rows of another kind: {change.reason_text}. "
                f'Give it a topic of its own, `topic="{topic}_2"`, and `{run} --fresh {name}`; or, when nobody needs the '
                f"rows so far, with Kafka running (`riverrun up --detach`) `riverrun topics delete {topic}`, "
                f"`{run} {self._fresh_options(name)}`, and `riverrun tables remove {topic}` for the rows in its table"
            )
        text = f"{name} needs fresh state: {change.reason_text}. {self._reread_text(name)} "
        text += (
            f"`riverrun replay {file} {name}` does it without rows that are there twice; "
            f"`{run} --fresh {name}` sends all its rows to {topic} again"
        )
        if change.can_keep_state:
            text += f"; `{run} --keep-state {name}` goes on with what the old code has put into its state"
        elif keep_state:
            text += ". --keep-state does not help: Spark could not use the state, or would use it wrongly"
        return text

    def _fresh_options(self, name: str) -> str:
        """What begins anew together with a topic: the stream that writes it and those that read it."""
        topic = self.compilation.streams[name].stream.output_topic
        readers = [stream for stream in self.compilation.streams if topic in self.compilation.sources(stream)]
        return " ".join(f"--fresh {each}" for each in [name, *readers])

    @property
    def _file(self) -> str:
        """The pipeline file, as it can be typed here."""
        file = self.compilation.graph.app.file
        here = f"{Path.cwd()}/"
        return file.removeprefix(here)

    def _reread_text(self, name: str) -> str:
        """How much is to be read, and how long that takes if it is known."""
        # Offsets, of which some may be markers of transactions: no more records than these.
        records = sum(self._size(topic) for topic in self.compilation.sources(name))
        rate = read_peak_rate(self.folder / name / "record_counts.json")
        text = f"It reads up to {records:,} record{'s' if records != 1 else ''} again, from the first there is"
        if rate and records:
            text += f", in about {_duration_text(records / rate)} at the {rate:,.0f} a second it has reached"
        return f"{text}."

    def _size(self, topic: str) -> int:
        state = self.admin.topics([topic], config=False).get(topic)
        if state is None:
            return 0
        places = [TopicPartition(topic, part) for part in range(len(state.partitions))]
        first, last = self.admin.offsets(places, "earliest"), self.admin.offsets(places, "latest")
        return sum(last[place] - first[place] for place in places)

    def _has_rows(self, topic: str) -> bool:
        return self._size(topic) > 0

    def _removed_streams(self, new: Collection[str]) -> Iterator[str]:
        """Streams that have run and that the file has no more; perhaps under another name."""
        app = self.compilation.graph.app
        folders = sorted(self.folder.iterdir()) if self.folder.exists() else []
        for folder in folders:
            if folder.name in app.streams or not (folder / HISTORY_FILE).exists():
                continue
            try:
                last = VersionHistory.read(folder / HISTORY_FILE).last
            except CheckpointError:
                last = None
            same_code = [name for name in new if last is not None and self._fingerprints[name].digest == last.digest]
            if same_code:
                yield (
                    f"{same_code[0]} does what {folder.name} did, which is not in {self._file} any more: it is a new "
                    f"stream, and reads from the first record. To go on from where {folder.name} was, give it its name back"
                )
            else:
                yield (
                    f"{folder.name} has run and is not in {self._file} any more. What it left behind: its topic, its group "
                    f"{app.name}.{folder.name}, {folder}"
                )


def find_changes(compilation: Compilation, folder: Path) -> dict[str, CodeChange]:
    """How every stream of an app has changed since its last saved version, without a broker."""
    return {
        name: compare_with_history(
            VersionHistory.read(folder / name / HISTORY_FILE), compute_fingerprint(compilation, name)
        )
        for name in compilation.streams
    }


def _read_topic_ids(file: Path) -> dict[str, str]:
    try:
        return {str(topic): str(made) for topic, made in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _write_topic_ids(file: Path, topics: dict[str, str]) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(topics), encoding="utf-8")
    temporary.replace(file)


def _duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
