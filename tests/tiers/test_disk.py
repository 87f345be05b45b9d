"""A disk tier beside restarts, other programs, other processes, and disks in trouble."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pagoda.tiers.disk import DiskTier
from pagoda.tiers.disk_folder import DiskFolder
from pagoda.tiers.tier import TierError, TierFault

TIMEOUT_S = 10.0
SHORT_S = 0.1
NAMES = [f"{7:016x}-{number + 1:064x}" for number in range(16)]
FRAME_BYTES = 5000
ON_DISK_BYTES = 8192
FRAMES = {name: bytes([number]) * FRAME_BYTES for number, name in enumerate(NAMES)}
FOLDER = "pagoda.tiers.disk_folder"
REST = "0123456789abcdef"
"""What a process that dies leaves in `incoming`."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., DiskTier]]:
    made: list[DiskTier] = []

    def make_tier(num_frames: int | None = 100, **options: Any) -> DiskTier:
        capacity = None if num_frames is None else num_frames * ON_DISK_BYTES
        made.append(DiskTier(path, capacity, **options))
        return made[-1]

    yield make_tier
    for tier in made:
        tier.close()


def store(tier: DiskTier, *numbers: int) -> None:
    tier.store([(NAMES[number], FRAMES[NAMES[number]]) for number in numbers], TIMEOUT_S)


def held(tier: DiskTier) -> list[int]:
    return [number for number, there in enumerate(tier.holds(NAMES, TIMEOUT_S)) if there]


def load(tier: DiskTier, *numbers: int) -> list[bytes | None]:
    names = [NAMES[number] for number in numbers]
    return [None if each is None else bytes(each) for each in tier.load(names, TIMEOUT_S)]


def fault(call: Callable[[], object]) -> TierFault:
    """Of a call that fails."""
    with pytest.raises(TierError) as caught:
        call()
    return caught.value.reason


def file_of(path: Path, number: int) -> Path:
    return path / "frames" / NAMES[number][17:19] / NAMES[number]


def bytes_in(path: Path) -> int:
    return sum(each.stat().st_blocks * 512 for each in path.rglob("*") if each.is_file())


def test_the_bound_and_the_order_of_use_outlive_a_restart(
    make: Callable[..., DiskTier], path: Path
) -> None:
    now = [1000.0]
    first = make(8, clock=lambda: now[0])
    store(first, 0, 1, 2)
    now[0] += 100
    store(first, 3, 4)
    now[0] += 100
    assert load(first, 1) == [FRAMES[NAMES[1]]]
    first.close()
    file_of(path, 9).parent.mkdir(exist_ok=True)
    (path / "incoming" / REST).write_bytes(bytes(9000))
    second = make(4, clock=lambda: now[0])
    assert second.wait_until_counted(TIMEOUT_S)
    assert sorted(entry.name for entry in second.entries(TIMEOUT_S)) == [
        NAMES[number] for number in (0, 1, 3, 4)
    ]
    assert second.usage().num_bytes == 4 * ON_DISK_BYTES >= bytes_in(path / "frames")
    assert list((path / "incoming").iterdir()) == []
    store(second, 5)
    assert held(second) == [1, 3, 4, 5]


def test_a_file_s_time_is_not_set_at_each_use(make: Callable[..., DiskTier], path: Path) -> None:
    now = [1e9]
    tier = make(clock=lambda: now[0])
    store(tier, 0)
    for seconds, expected in ((0.0, 1e9), (50.0, 1e9), (61.0, 1e9 + 61), (100.0, 1e9 + 61)):
        now[0] = 1e9 + seconds
        load(tier, 0)
        assert file_of(path, 0).stat().st_mtime == pytest.approx(expected, abs=1e-3)


def test_frames_that_somebody_took_away_are_misses(
    make: Callable[..., DiskTier], path: Path
) -> None:
    tier = make()
    store(tier, 0, 1)
    file_of(path, 0).unlink()
    assert load(tier, 0, 1) == [None, FRAMES[NAMES[1]]]
    assert held(tier) == [1]
    store(tier, 0)
    assert load(tier, 0) == [FRAMES[NAMES[0]]]


def test_a_folder_that_is_gone_is_made_anew(make: Callable[..., DiskTier], path: Path) -> None:
    tier = make()
    store(tier, 0)
    path.rename(path.with_name("old"))
    assert load(tier, 0) == [None]
    store(tier, 1)
    assert (held(tier), load(tier, 0, 1)) == ([1], [None, FRAMES[NAMES[1]]])


def test_a_folder_in_the_place_of_another_is_counted_anew(
    make: Callable[..., DiskTier], path: Path
) -> None:
    """As a disk that is mounted while a server runs."""
    earlier = make(4)
    store(earlier, 0, 1, 2, 3)
    earlier.close()
    path.rename(path.with_name("disk"))
    tier = make(4)
    store(tier, 4)
    path.rename(path.with_name("below"))
    path.with_name("disk").rename(path)
    assert tier.wait_until_counted(TIMEOUT_S)
    store(tier, 5)
    assert sorted(held(tier)) == [1, 2, 3, 5]
    assert tier.usage().num_bytes == 4 * ON_DISK_BYTES >= bytes_in(path / "frames")
    assert fault(lambda: held(make())) is TierFault.IN_USE


def test_on_another_file_system_a_folder_is_taken_but_none_is_made(path: Path) -> None:
    """As what is there once a disk was unmounted."""
    with pytest.raises(TierError, match="on another file system than before") as caught:
        DiskFolder(path).take(device=path.parent.stat().st_dev + 1)
    assert caught.value.reason is TierFault.UNREACHABLE
    assert not path.exists()
    made = DiskFolder(path)
    device = made.take()
    made.close()
    again = DiskFolder(path)
    assert again.take(device=device + 1) == device
    again.close()


def test_a_frame_that_somebody_removed_is_not_held_and_is_stored_again(
    make: Callable[..., DiskTier], path: Path
) -> None:
    tier = make()
    store(tier, 0, 1)
    for number in (0, 1):
        file_of(path, number).unlink()
    assert held(tier) == []
    assert tier.usage().num_bytes == 0
    store(tier, 2)
    file_of(path, 2).unlink()
    store(tier, 2)
    assert load(tier, 2) == [FRAMES[NAMES[2]]]


@pytest.mark.parametrize("part", ["frames", "incoming", "pagoda-tier", "*"])
def test_a_folder_that_lost_a_part_is_made_whole(
    make: Callable[..., DiskTier], path: Path, part: str
) -> None:
    """As by somebody who cleared it by hand."""
    tier = make()
    store(tier, 0)
    for each in path.glob(part):
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    for number in (1, 2):
        with suppress(TierError):
            store(tier, number)
    store(tier, 1)
    assert load(tier, 1) == [FRAMES[NAMES[1]]]


def test_what_is_no_file_is_no_frame_and_is_not_waited_for(
    make: Callable[..., DiskTier], path: Path
) -> None:
    tier = make(max_frame_bytes=FRAME_BYTES)
    store(tier, 0, 1, 2)
    for number in (0, 1, 2):
        file_of(path, number).unlink()
    os.mkfifo(file_of(path, 0))
    file_of(path, 1).symlink_to("/etc/passwd")
    file_of(path, 2).mkdir()
    assert load(tier, 0, 1) == [b"", b""]
    assert load(tier, 2) == [b""]
    with file_of(path, 3).open("wb") as file:
        file.truncate(2**40)
    assert [len(each or b"") for each in load(tier, 3)] == [FRAME_BYTES + 1]
    tier.quarantine([NAMES[0], NAMES[1], NAMES[3]], TIMEOUT_S)
    assert load(tier, 0, 1, 3) == [None] * 3
    assert file_of(path, 1).parent.exists()
    assert Path("/etc/passwd").exists()


def test_bad_frames_are_set_apart_and_the_bound_holds(
    make: Callable[..., DiskTier], path: Path
) -> None:
    tier = make(32)
    store(tier, *range(16))
    for number in range(5):
        tier.quarantine([NAMES[number]], TIMEOUT_S)
    kept = sorted(each.name for each in (path / "quarantine").iterdir())
    assert kept == [NAMES[3], NAMES[4]]  # a sixteenth of the room
    assert (path / "quarantine" / NAMES[4]).read_bytes() == FRAMES[NAMES[4]]
    assert held(tier) == [*range(5, 16)]
    assert tier.usage().num_bytes == 13 * ON_DISK_BYTES
    tier.close()
    again = make(8)
    assert again.wait_until_counted(TIMEOUT_S)
    assert again.usage().num_bytes == 8 * ON_DISK_BYTES >= bytes_in(path) - 2 * 4096


def test_another_program_s_folder_is_left_alone(make: Callable[..., DiskTier], path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("chapter 1")
    tier = make()
    for call in (lambda: held(tier), lambda: store(tier, 0), lambda: load(tier, 0)):
        assert fault(call) is TierFault.FOREIGN
    assert [each.name for each in path.iterdir()] == ["thesis.tex"]
    (path / "thesis.tex").unlink()
    store(tier, 0)  # it was mended while the tier was there
    assert held(tier) == [0]
    tier.close()
    (path / "thesis.tex").write_text("chapter 2")
    assert held(make()) == [0]
    (path / "pagoda-tier").write_text("pagoda tier 2\n")
    with pytest.raises(TierError, match="of another version: give it a folder of its own"):
        held(make(None))


@pytest.mark.parametrize("name", ["incoming/thesis.docx", "lock"])
def test_what_is_only_called_like_a_tier_s_is_left_alone(
    make: Callable[..., DiskTier], path: Path, name: str
) -> None:
    mine = path / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine, since 2019")
    for call in (lambda: make().holds([], TIMEOUT_S), lambda: store(make(), 0)):
        assert fault(call) is TierFault.FOREIGN
    assert mine.read_text() == "mine, since 2019"


def test_a_tier_removes_nothing_else_of_incoming(make: Callable[..., DiskTier], path: Path) -> None:
    first = make()
    store(first, 0)
    first.close()
    for name in (REST, "thesis.docx"):
        (path / "incoming" / name).write_text("text")
    assert held(make()) == [0]
    assert [each.name for each in (path / "incoming").iterdir()] == ["thesis.docx"]


def test_a_folder_whose_maker_was_killed_is_made_to_its_end(tmp_path: Path) -> None:
    made = DiskTier(tmp_path / "kv", 10**6)
    store(made, 0)
    made.close()
    steps = [("lock",), ("lock", "incoming"), ("lock", "incoming", "pagoda-tier")]
    for number, left in enumerate(((), *steps)):
        path = tmp_path / str(number)
        path.mkdir()
        for name in left:
            if name == "incoming":
                (path / name).mkdir()
                (path / name / REST).write_bytes(b"pagoda")
            else:
                (path / name).write_bytes((tmp_path / "kv" / name).read_bytes())
        tier = DiskTier(path, 10**6)
        store(tier, 1)
        assert held(tier) == [1]
        assert sorted(each.name for each in path.iterdir()) == sorted(
            each.name for each in (tmp_path / "kv").iterdir()
        )
        tier.close()


def test_one_process_stores_in_a_folder(make: Callable[..., DiskTier], path: Path) -> None:
    first, second, inspected = make(), make(), make(None)
    assert fault(lambda: held(inspected)) is TierFault.UNREACHABLE
    assert not path.exists()
    store(first, 0, 1)
    with pytest.raises(TierError, match=f"{path} is in use by process {os.getpid()}: give"):
        held(second)
    assert load(inspected, 0) == [FRAMES[NAMES[0]]]
    assert fault(lambda: store(inspected, 2)) is TierFault.DENIED
    store(first, 2)
    assert held(inspected) == [0, 1, 2]
    inspected.quarantine([NAMES[0]], TIMEOUT_S)
    inspected.remove([NAMES[1]], TIMEOUT_S)
    assert load(first, 0, 1, 2) == [None, None, FRAMES[NAMES[2]]]
    assert first.usage().num_bytes == 2 * ON_DISK_BYTES  # the one that was set apart is counted
    first.close()
    assert held(second) == [2]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, TierFault.FULL),
        (errno.EDQUOT, TierFault.FULL),
        (errno.EROFS, TierFault.DENIED),
        (errno.EACCES, TierFault.DENIED),
        (errno.EIO, TierFault.UNREACHABLE),
        (errno.EMFILE, TierFault.ERROR),
    ],
)
def test_a_disk_in_trouble_keeps_nothing_in_part(
    number: int,
    reason: TierFault,
    make: Callable[..., DiskTier],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = make()
    store(tier, 0)

    class Failing:
        """A file that takes half of what it is given, and then fails."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._file = open(*args, **options)  # noqa: SIM115
            self._num_writes = 0

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *args: object) -> None:
            self._file.close()

        def write(self, data: memoryview) -> int:
            self._num_writes += 1
            if self._num_writes == 2:
                raise OSError(number, os.strerror(number))
            return self._file.write(data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(f"{FOLDER}.open", Failing, raising=False)
        assert fault(lambda: store(tier, 1)) is reason
    assert list((path / "incoming").iterdir()) == []
    assert (held(tier), tier.usage().num_bytes) == ([0], ON_DISK_BYTES)
    store(tier, 1)
    assert load(tier, 0, 1) == [FRAMES[NAMES[0]], FRAMES[NAMES[1]]]


def test_places_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    places = {tmp_path / "file": TierFault.FOREIGN, tmp_path / "file/kv": TierFault.FOREIGN}
    for place, reason in places.items():
        tier = DiskTier(place, 10**6)
        assert {fault(lambda: held(tier)), fault(lambda: store(tier, 0))} == {reason}  # noqa: B023
        tier.close()

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    tier = DiskTier(tmp_path / "new", 10**6)
    with pytest.raises(TierError, match=f"^{tmp_path}/new cannot be opened: Permission denied$"):
        held(tier)


@pytest.mark.parametrize("call", ["holds", "load", "store", "remove", "entries"])
def test_a_disk_that_hangs_is_not_waited_for(
    call: str, make: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make()
    store(tier, 0)
    answers = threading.Event()
    hang = {
        "holds": ("_opened", tier),
        "load": ("read", tier._opened()),
        "store": ("write", tier._opened()),
        "remove": ("remove", tier._opened()),
        "entries": ("entries", tier._opened()),
    }
    calls: dict[str, Callable[[], object]] = {
        "holds": lambda: tier.holds(NAMES, SHORT_S),
        "load": lambda: list(tier.load(NAMES, SHORT_S)),
        "store": lambda: tier.store([(NAMES[1], b"x")], SHORT_S),
        "remove": lambda: tier.remove(NAMES[:1], SHORT_S),
        "entries": lambda: list(tier.entries(SHORT_S)),
    }
    method, owner = hang[call]
    really = getattr(owner, method)

    def wait(*args: Any) -> Any:
        answers.wait(TIMEOUT_S)
        return really(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, wait)
        began = time.monotonic()
        for _ in range(3):
            assert fault(calls[call]) is TierFault.TIMEOUT
        assert time.monotonic() - began < TIMEOUT_S / 2
        for _ in range(40):  # threads are not piled up without end
            with pytest.raises(TierError, match=r"did not answer|earlier calls hang"):
                tier.holds(NAMES, 0.0) if call == "holds" else next(tier.load(NAMES, 0.0))
        answers.set()
    while any(thread.name.startswith("pagoda disk") for thread in threading.enumerate()):
        time.sleep(0.001)
    calls[call]()
    store(tier, 2)
    assert load(tier, 2) == [FRAMES[NAMES[2]]]


def test_stores_behind_one_that_hangs_are_given_up_and_reads_go_on(
    make: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make()
    store(tier, 0)
    answers = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(tier._opened(), "write", lambda *_: answers.wait(TIMEOUT_S))
        for _ in range(40):  # more than a tier has threads
            assert fault(lambda: tier.store([(NAMES[1], b"x")], SHORT_S / 10)) is TierFault.TIMEOUT
        assert load(tier, 0) == [FRAMES[NAMES[0]]]
        answers.set()


def test_what_is_there_is_loaded_before_it_is_counted(
    make: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make()
    store(first, 0, 1)
    first.close()
    go_on = threading.Event()
    really = DiskFolder.entries

    def slow(folder: Any) -> Any:
        assert go_on.wait(TIMEOUT_S)
        return really(folder)

    monkeypatch.setattr(f"{FOLDER}.DiskFolder.entries", slow)
    second = make()
    assert held(second) == [0, 1]
    assert load(second, 1, 2) == [FRAMES[NAMES[1]], None]
    assert fault(lambda: second.store([(NAMES[2], b"x")], SHORT_S)) is TierFault.TIMEOUT
    go_on.set()
    store(second, 2)
    assert second.usage().num_frames == 3


KILLED = """
import os, random, signal, sys, time
from contextlib import suppress
from pathlib import Path
from pagoda.tiers.disk import DiskTier
from pagoda.tiers.frame import FrameFormat
from pagoda.tiers.names import BlockName
from pagoda.tiers.seal import Checksum

path, chance = Path(sys.argv[1]), random.Random(5)
PAYLOAD, CAPACITY = 1_000_000, 4_200_000
form = FrameFormat(bytes(32), PAYLOAD, Checksum())
contents = [os.urandom(PAYLOAD) for _ in range(2)]
blocks = [BlockName(bytes([number]) * 32, 0) for number in range(9)]
frames = [(form.name(block), form.encode(block, each)) for block in blocks for each in contents]
num_left = num_frames = 0

def write(begun):
    tier = DiskTier(path, CAPACITY)
    while True:
        for name, frame in chance.sample(frames, len(frames)):
            tier.store([(name, frame)], 10.0)
            os.write(begun, b".")

for number in range(50):
    has_begun, begun = os.pipe()
    child = os.fork()
    chance.random()
    if child == 0:
        write(begun)
    os.read(has_begun, 1)
    time.sleep(chance.uniform(0, 0.01))
    while number % 2 and not os.listdir(path / "incoming"):
        pass  # these are killed in the middle of a frame
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(has_begun)
    os.close(begun)
    files = [each for each in path.rglob("*") if each.is_file()]
    assert sum(each.stat().st_blocks * 512 for each in files) <= CAPACITY + 2 * 4096
    num_left += any(each.parent.name == "incoming" for each in files)
tier = DiskTier(path, CAPACITY)
assert tier.wait_until_counted(10.0)
for block, frame in zip(blocks, tier.load(list(map(form.name, blocks)), 10.0)):
    if frame is not None:
        num_frames += 1
        assert form.decode(block, frame) in contents
assert not os.listdir(path / "incoming")
print(num_left, num_frames, tier.usage().num_frames)
"""


def test_processes_that_are_killed_while_they_write(path: Path) -> None:
    """Fifty of them: no frame is torn, and the bytes are within the bound after each."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    num_left, num_frames, num_counted = map(int, done.stdout.split())
    assert num_left, "nobody was killed in the middle of writing"
    assert num_frames == num_counted > 0
