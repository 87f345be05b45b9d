"""What every process that runs tests needs. A plugin of pytest's, which `conftest.py` loads."""

# First of all, because other libraries import triton as well, and it cannot be chosen again.
import triton_device  # isort: skip

import gc
import ssl
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

import pagoda
import side_by_side
from by_file import place_of, scope_of
from pagoda.engine.build import Model, load_model
from pagoda.engine.devices import calibration, find
from pagoda.engine.options import EngineOptions
from pagoda.kernels.cpu.fingerprint import fingerprint_of
from server.browser import Browser, running_browser

__all__ = ["MAX_MODEL_LEN", "triton_device"]

MAX_MODEL_LEN = 1024
"""The longest sequence of the default model, where tests share it."""
CALIBRATION_CHARACTERS = 250
"""Of the text that formats are calibrated by in tests, which is two hundred times as long."""
CALIBRATES = ("codecs/*.py", "engine/devices/*calibration*.py", "execution/cpu/*.py")
"""What calibrations follow from, beside models and kernels."""
DEFAULT_MODEL = pytest.StashKey[Model]()
"""Of a run: what the files of one group share (see `by_file`), like the next."""
BROWSER = pytest.StashKey[tuple[Browser, ExitStack]]()
"""And what ends it."""


@pytest.fixture(scope="module")
def default_model(pytestconfig: pytest.Config) -> Model:
    """The default model in memory, for any number of engines."""
    stash = pytestconfig.stash
    if DEFAULT_MODEL not in stash:
        stash[DEFAULT_MODEL] = load_model(EngineOptions(max_model_len=MAX_MODEL_LEN))
    return stash[DEFAULT_MODEL]


@pytest.fixture(scope="module")
def browser(pytestconfig: pytest.Config) -> Browser:
    """Chromium, whose tabs share nothing."""
    stash = pytestconfig.stash
    if BROWSER not in stash:
        running = ExitStack()
        stash[BROWSER] = running.enter_context(running_browser()), running
    return stash[BROWSER][0]


@pytest.fixture(autouse=True, scope="session")
def engines_on_cpus() -> Iterator[None]:
    """An engine whose device is not named is the CPU's in tests, whatever the machine has."""
    wants_gpu = find.wants_gpu
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            find,
            "wants_gpu",
            lambda given, look: given.device != "auto" and wants_gpu(given, look),
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def calibrated_by_little() -> Iterator[None]:
    """Formats are calibrated by the beginning of the text: what is found is worse, and no test asks
    how good it is. The whole text takes the default model a minute. What earlier runs have kept
    counts where the code that found it is the same."""
    whole, digest = calibration._text(), calibration.Calibration._digest
    root = Path(pagoda.__file__).parent
    code = fingerprint_of(file for each in CALIBRATES for file in sorted(root.glob(each)))

    def digest_here(own: calibration.Calibration, recipe: str) -> str:
        return digest(own, f"{recipe} {code}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_text", lambda: whole[:CALIBRATION_CHARACTERS])
        patch.setattr(calibration.Calibration, "_digest", digest_here)
        yield


@pytest.fixture(autouse=True, scope="session")
def certificates_read_once() -> Iterator[None]:
    """Every HTTP client would read the authorities that it trusts anew, in 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield  # no test asks for other authorities, nor to trust without them


def pytest_collection(session: pytest.Session) -> None:
    """What is loaded now stays to the end: there is no garbage yet to look for."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Nor is any looked for there later, where a million objects would take a second each time."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Processes take tests in the order in which they were collected."""
    if config.getoption("num_processes") > 1:
        items.sort(key=lambda item: place_of(item.nodeid))
        for item in items:
            if scope_of(item.nodeid) == "alone":
                item.add_marker(pytest.mark.threads)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """A test waits for its cores before its time begins to count."""
    alone = is_alone(item)
    stays = alone and nextitem is not None and is_alone(nextitem)
    with side_by_side.MACHINE.cores(alone=alone, stays=stays):
        result = yield
    tidy_up(item, nextitem)
    return result


def tidy_up(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a group of files: what they shared is given back."""
    stash = item.config.stash
    if nextitem is None or scope_of(nextitem.nodeid) != scope_of(item.nodeid):
        if DEFAULT_MODEL in stash:
            del stash[DEFAULT_MODEL]
        end_browser(stash)


def end_browser(stash: pytest.Stash) -> None:
    """If one runs."""
    if BROWSER in stash:
        _, running = stash[BROWSER]
        del stash[BROWSER]
        running.close()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run may end before its last test, as with `-x`: another process waits for the machine."""
    side_by_side.MACHINE.give_back()
    end_browser(session.config.stash)


def pytest_unconfigure() -> None:
    """pytest looks for garbage five times more, through all that is loaded."""
    gc.collect()
    gc.freeze()


def is_alone(item: pytest.Item) -> bool:
    """Whether a test has the machine to itself."""
    return item.get_closest_marker("threads") is not None
