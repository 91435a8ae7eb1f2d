"""Makes a report: evidence into a folder beside its place, the diagnosis of just that folder, the page, the archive."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from atlctl import __version__
from atlctl.cli import say
from atlctl.cli.evidence.findings import matcher, no_log, own_signatures, placed, read_counted
from atlctl.cli.report.page import Material, page, proofs_of, smoke_results, smoke_workers, words
from atlctl.cli.smoke.telling import Words
from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.evidence import JobEvidence, WorkerEvidence
from atlctl.diagnosis.hang import HANG
from atlctl.diagnosis.platform import Event
from atlctl.diagnosis.result import Cause, Diagnosis, Proof, Traceback
from atlctl.diagnosis.steps import StepTrack
from atlctl.diagnosis.telling.data import to_data
from atlctl.diagnosis.telling.guide import Guide, Manner
from atlctl.diagnosis.telling.people import tell_people
from atlctl.i18n import Message, edited, language
from atlctl.jobs.errors import AtlctlError, NothingMatched, UsageError
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import lines_within
from atlctl.recording import manifest
from atlctl.recording.events import parse_events
from atlctl.recording.excerpts import Passage, around, versions
from atlctl.recording.read import Saved
from atlctl.recording.recorder.store import EVENTS, read_states
from atlctl.recording.redacted import (
    SAVE_SMOKE,
    SMOKE,
    Redacted,
    ReportFolder,
    copy_files,
    copy_folder,
    is_archive,
    move,
    pack,
    put_error_file,
    put_smoke,
    read_smoke,
    staged,
)
from atlctl.recording.save import DEADLINE, SAVING_ERROR_FILES, error_file_parts, fetch_error_files, save
from atlctl.recording.steps import tracks_of
from atlctl.render.page import render
from atlctl.render.redact import redact_diagnostics, redact_text
from atlctl.render.sanitize import clean
from atlctl.render.table import rfc3339

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.diagnosis.hang import Scene
    from atlctl.jobs.model import Job, Worker

INDEX, VERDICT = "index.html", "verdict.json"


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A report that was made. `path`: the folder or the archive; `bytes` of all its files, or of the archive."""

    path: str
    bytes: int
    headline: str
    data: Mapping[str, Any]
    missing: Sequence[tuple[str, str]]
    redacted: int
    job: Mapping[str, Any]

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.job,
            "path": self.path,
            "index": None if is_archive(self.path) else os.path.join(self.path, INDEX),
            "bytes": self.bytes,
            "missing": [{"what": what, "reason": why} for what, why in self.missing],
            "redacted": self.redacted,
            **self.data,
        }


@dataclass(slots=True)
class Making:
    """One report that is made in `folder`, to get the name `path`."""

    folder: ReportFolder
    path: str
    smoke: Mapping[str, Any] | None
    missing: list[tuple[str, str]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=lambda: {"job": None, "uid": None, "state": None})
    remarks: list[str] = field(default_factory=list)
    now: float = field(default_factory=time.time)

    def copy(self, paths: Sequence[str], *, error_files: bool) -> None:
        """Copy saved evidence. Raises AtlctlError if there is none."""
        with say.doing(Message("copying the logs, secrets hidden"), done=self.folder.size, size=True):
            if len(paths) == 1 and os.path.isdir(paths[0]):
                done = copy_folder(paths[0], self.folder, error_files=error_files)
            else:
                done = copy_files(paths, self.folder)
        self.missing += done.missing

    async def collect(self, source: Backend, job: Job) -> None:
        """Collect the evidence of a known job. Raises Unreachable if none of its logs could be read."""
        self.about = {"job": job.name, "uid": job.uid, "state": str(job.state)}
        redacted = Redacted(source, job, self.folder.found)
        with say.doing(Message("saving the logs, secrets hidden"), done=self.folder.size, size=True, limit=DEADLINE):
            saved = await save(redacted, redacted.job, self.folder)
        self.missing += saved.missing
        if not saved.logs and not any(name == EVENTS for name, _ in self.folder.files()):
            raise no_log(job)
        facts = {item.worker: item.log for item in self._read().job.workers if item.log is not None}
        with say.doing(SAVING_ERROR_FILES):
            await fetch_error_files(source, job, facts, self._keep_error_file)

    def _keep_error_file(self, worker: Worker, path: str, data: bytes) -> None:
        try:
            put_error_file(self.folder, error_file_parts(worker, path), data)
        except OSError as error:
            self.missing.append((f"{worker.name}: {path}", error.strerror or str(error)))

    def diagnose(self) -> tuple[Saved, Diagnosis]:
        """The diagnosis that `errors --from` gives for the folder. Paths are relative to it."""
        known = matcher(own_signatures())
        saved = self._read()
        start = os.path.join(self.folder.path, "")

        def inside(proof: Proof) -> Proof:
            return replace(proof, file=proof.file.removeprefix(start)) if proof.file else proof

        def relative(text: str) -> str:
            return edited(text, lambda part: part.replace(start, ""))

        self.remarks += map(relative, saved.remarks)
        self.missing += [("", relative(problem.message)) for problem in saved.problems]
        return saved, placed(diagnose(saved.job, known), saved).placed(inside)

    def _read(self) -> Saved:
        try:
            return read_counted([self.folder.path], matcher(own_signatures()))
        except NothingMatched:
            if self.about["job"] is None:
                raise
            return self._without_logs()

    def _without_logs(self) -> Saved:
        """Evidence of a job without output: the platform may show the reason."""
        described = self._manifest()
        workers = tuple(
            WorkerEvidence(item.name, item.index, state=item.state, platform=item.platform)
            for item in (described.workers if described else ())
        )
        events: list[Event] = []
        with suppress(FileNotFoundError), open(os.path.join(self.folder.path, EVENTS), "rb") as file:
            events, _ = parse_events(lines_within(file))
        expected = described.job.expected_workers if described else None
        return Saved(JobEvidence(workers, expected=expected, events=tuple(events)), (), 0, 0, (), (), ())

    def finish(
        self, saved: Saved, found: Diagnosis, looked: Diagnosis | None = None, scene: Scene | None = None
    ) -> WrittenReport:
        """Writes the page and gives the report its name. Raises UsageError where something has that by now.

        `looked`: `found` with what a look at the ranks, `scene`, has added; that is in no file of the folder.
        """
        lang = language()
        told = words(lang)
        guide = Guide.builtin(own_signatures())
        manner = Manner(lang, True, guide, _place, self._next_command)
        if looked is not None and looked is not found:
            if looked.verdict is not found.verdict:
                self.remarks.append(told["looked"])
            found = hide(looked)
        data = to_data(found, guide)
        smoke = self._smoke()
        described = self._manifest()
        if described is not None and self.about["job"] is None:
            job = described.job
            self.about = {"job": job.name or None, "uid": job.uid or None, "state": str(job.state)}
        self.folder.put([VERDICT], json.dumps({**self.about, **data}, indent=1).encode() + b"\n")
        redacted = self.folder.places()
        self.missing = [(what, redact_text(why)) for what, why in self.missing]
        material = Material(
            found,
            saved.job,
            described,
            read_states(self.folder.path),
            self._passages(found, saved),
            self._tracebacks(saved.job),
            self._versions(saved),
            self.folder.files(),
            self.missing,
            self.remarks,
            self._made(redacted, told),
            self.about,
            scene,
            () if smoke is None else smoke_results(smoke, told, Words(lang).sentence),
            {} if smoke is None else smoke_workers(smoke),
            self._tracks(),
        )
        with say.doing(Message("writing the page")):
            text = render(page(material, manner, told))
            self.folder.put([INDEX], text.encode("utf-8", "backslashreplace"))
        if is_archive(self.path):
            with say.doing(Message("packing {path}", path=self.path)):
                size = pack(self.folder.path, self.path, self.now)
        else:
            size = sum(count for _, count in self.folder.files())
            move(self.folder.path, self.path)
        headline = "".join(piece.text for piece in tell_people(found, manner).title)
        return WrittenReport(self.path, size, headline, data, self.missing, redacted, self.about)

    def _tracks(self) -> Mapping[str, Sequence[StepTrack]]:
        try:
            return tracks_of([self.folder.path], "report").workers
        except AtlctlError:
            return {}  # its problems were reported when the folder was read

    def _next_command(self, cause: Cause) -> str | None:
        if cause.category == HANG and not any(proof.line_no for proof in cause.proofs):
            return f"atlctl stacks {self.about['job']}"
        proof = next((proof for proof in cause.proofs if proof.file is not None), None)
        if proof is None or proof.file is None:
            return None
        return f"less {f'+{proof.line_no} ' if proof.line_no else ''}{shlex.quote(proof.file)}"

    def _smoke(self) -> Mapping[str, Any] | None:
        """The smoke test's document: the one named with --smoke, else the one in the copied folder."""
        own = os.path.join(self.folder.path, SMOKE)
        if self.smoke is not None and not os.path.lexists(own):
            put_smoke(self.folder, self.smoke)
        try:
            return read_smoke(own)
        except FileNotFoundError:
            return None

    def _manifest(self) -> manifest.Manifest | None:
        try:
            with open(os.path.join(self.folder.path, manifest.NAME), "rb") as file:
                return manifest.read_manifest(file.read(manifest.SIZE_LIMIT + 1))
        except (FileNotFoundError, UsageError):
            return None  # its error was reported when the folder was read

    def _passages(self, found: Diagnosis, saved: Saved) -> dict[tuple[str, int], Passage]:
        """The lines around each proof, and the whole traceback that ends there."""
        start = os.path.join(self.folder.path, "")
        begins: dict[tuple[str, int], int] = {}
        for worker in saved.job.workers:
            for trace in worker.log.traces if worker.log else ():
                for raised in trace.chain:
                    path, number = saved.place(raised.line_no)
                    begins[path.removeprefix(start), number] = number - (raised.line_no - trace.line_no)
        wanted: dict[str, dict[int, int]] = {}
        for proof in proofs_of(found):
            if proof.file and proof.line_no:
                at = (proof.file, proof.line_no)
                wanted.setdefault(proof.file, {})[proof.line_no] = begins.get(at, proof.line_no)
        return {
            (name, number): passage
            for name, numbers in wanted.items()
            for number, passage in around(os.path.join(self.folder.path, name), numbers).items()
        }

    def _tracebacks(self, job: JobEvidence) -> dict[str, list[str]]:
        """The tracebacks in error files, by the file's path from the folder."""
        start = os.path.join(self.folder.path, "")
        return {
            path.removeprefix(start): record.traceback.splitlines()
            for worker in job.workers
            for path, record in worker.error_files.items()
            if record.traceback
        }

    def _versions(self, saved: Saved) -> dict[str, Mapping[str, str]]:
        start = os.path.join(self.folder.path, "")
        found: dict[str, Mapping[str, str]] = {}
        for log in saved.logs:
            name = log.path.removeprefix(start)
            if "/" not in name and (told := versions(log.path)):
                found.setdefault(name.removesuffix(".log").removesuffix(".ts"), told)
        return found

    def _made(self, redacted: int, told: Mapping[str, str]) -> list[tuple[str, str]]:
        command = redact_diagnostics(shlex.join(["atlctl", *sys.argv[1:]]))
        return [
            (told["made by"], f"atlctl {__version__}"),
            (told["made at"], rfc3339(self.now)),
            (told["made with"], command),
            (told["made redacted"], told["made redacted text"].format(count=redacted)),
            (told["made read"], told["made read text"]),
        ]


@contextmanager
def making(out: str | None, name: str, smoke: str | None) -> Iterator[Making]:
    """A report in progress. `out`: its path; without it the path contains `name`.

    Raises UsageError, NotAllowed if it cannot be made there, or if `smoke` is not a document of a smoke test.
    """
    data = None
    if smoke is not None:
        try:
            data = read_smoke(smoke)
        except FileNotFoundError:
            raise NothingMatched(Message("{path}: no such file", path=smoke), SAVE_SMOKE) from None
    now = time.time()
    path = out or f"atlctl-report-{safe_file_name(name)}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
    with staged(path) as place:
        folder = ReportFolder(place)
        try:
            yield Making(folder, path.rstrip("/"), data, now=now)
        except OSError as error:
            why = error.strerror or str(error)
            raise AtlctlError(
                Message("the report cannot be written: {why}", why=why), Message("name another place with --out")
            ) from error
        finally:
            folder.close()


def _place(proof: Proof) -> str:
    if proof.file is None:
        return redact_text(proof.worker)  # reports of the platform are not in a log
    return f"{proof.file}:{proof.line_no}" if proof.line_no is not None else proof.file


def hide(found: Diagnosis) -> Diagnosis:
    """The diagnosis with its secrets redacted."""

    def caused(items: Sequence[Cause]) -> tuple[Cause, ...]:
        return tuple(
            replace(
                item,
                message=redact_text(item.message),
                detail=redact_text(item.detail),
                why=redact_text(item.why),
                traceback=item.traceback and traced(item.traceback),
            )
            for item in items
        )

    def traced(trace: Traceback) -> Traceback:
        return replace(
            trace,
            message=redact_text(trace.message),
            frames=tuple(replace(frame, source=redact_text(frame.source)) for frame in trace.frames),
            earlier=tuple(replace(raised, message=redact_text(raised.message)) for raised in trace.earlier),
        )

    causes, candidates, remarks = caused(found.root_causes), caused(found.candidates), map(redact_text, found.remarks)
    changed = replace(found, root_causes=causes, candidates=candidates, remarks=tuple(remarks))
    return changed.placed(lambda proof: replace(proof, text=redact_text(proof.text)))


def tell(report: WrittenReport, output: str) -> None:
    """Print the report's path and verdict on stdout, or its JSON document."""
    if output in ("json", "yaml"):
        say.document(report.as_data())
        return
    shown = report.path if is_archive(report.path) else os.path.join(report.path, INDEX)
    say.out(f"{clean(shown)}\n{clean(report.headline)}\n")
