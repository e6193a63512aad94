"""The policy file followed: what is taken, what is refused, and how soon."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from prefleet_runtime.contract import InvalidPolicyError, RuntimePolicy
from prefleet_runtime.reload import LARGEST_BYTES, POLL_S, PolicyWatcher

from tests.support.waiting import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    path.write_text(RuntimePolicy(generation=1).to_json())
    return path


@contextmanager
def still(path: Path) -> Iterator[PolicyWatcher]:
    """A watcher that looks only when told to."""
    with closing(PolicyWatcher(path, poll_s=3600)) as watcher:
        yield watcher


def test_a_poll_comes_well_within_a_second() -> None:
    assert POLL_S <= 0.5


def test_a_change_is_taken_by_the_thread_alone(path: Path) -> None:
    with closing(PolicyWatcher(path, poll_s=0.01)) as watcher:
        path.write_text(RuntimePolicy(generation=2).to_json())
        eventually(lambda: watcher.current.generation == 2, poll_s=0.01)


def test_a_swapped_link_is_taken_as_a_kubelet_does_it(tmp_path: Path) -> None:
    for generation in (1, 2):
        (tmp_path / f"..{generation}").mkdir()
        (tmp_path / f"..{generation}" / "policy.json").write_text(RuntimePolicy(generation=generation).to_json())
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policy.json").symlink_to("..data/policy.json")
    with still(tmp_path / "policy.json") as watcher:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        watcher.check()
        assert watcher.current.generation == 2


def test_an_edit_of_equal_size_and_time_is_not_missed(path: Path) -> None:
    with still(path) as watcher:
        before = path.stat()
        path.write_text(RuntimePolicy(generation=2).to_json())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        watcher.check()
        assert watcher.current.generation == 2


def test_an_unchanged_file_keeps_the_published_value(path: Path) -> None:
    with still(path) as watcher:
        published = watcher.current
        path.write_text(path.read_text() + "\n")
        watcher.check()
        assert watcher.current is published


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param('{"generation": 2, "thr', "JSON", id="a torn file"),
        pytest.param("", "JSON", id="an empty file"),
        pytest.param('{"generation": 2, "policy": "lifo"}', "policy", id="an unknown policy"),
        pytest.param('{"generation": 2, "surprise": 1}', "surprise", id="an unknown key"),
        pytest.param('\xff{"generation": 2}', "", id="not text at all"),
        pytest.param('{"generation": 2}' + " " * LARGEST_BYTES, f"{LARGEST_BYTES} bytes", id="a file too large"),
    ],
)
def test_a_bad_file_is_refused_counted_and_said_once(
    path: Path, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    with still(path) as watcher, caplog.at_level(logging.WARNING):
        published = watcher.current
        path.write_text(text, encoding="latin-1")
        watcher.check()
        watcher.check()
        assert watcher.current is published
        assert watcher.refused == 1
        assert len(caplog.messages) == 1
        assert said in caplog.messages[0]
        assert str(path) in caplog.messages[0]


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_endless, os.mkfifo], ids=["without an end", "without a writer"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    with still(path) as watcher, caplog.at_level(logging.WARNING):
        path.unlink()
        make(path)
        watcher.check()
        watcher.check()
        assert (watcher.current.generation, watcher.refused) == (1, 1)
        assert "it is no regular file" in caplog.messages[0]


def test_each_new_bad_content_is_counted_and_a_good_one_ends_it(path: Path) -> None:
    with still(path) as watcher:
        for text in ("{", "{{", "{"):
            path.write_text(text)
            watcher.check()
        path.unlink()
        watcher.check()
        watcher.check()
        assert watcher.refused == 4
        path.write_text(RuntimePolicy(generation=2).to_json())
        watcher.check()
        assert (watcher.current.generation, watcher.refused) == (2, 4)


def test_a_lower_generation_is_taken_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with still(path) as watcher, caplog.at_level(logging.WARNING):
        path.write_text(RuntimePolicy(generation=0, long_max_wait_ms=7).to_json())
        watcher.check()
        assert watcher.current.long_max_wait_ms == 7
        assert "policy generation 0 follows 1" in caplog.messages[0]


@pytest.mark.parametrize("text", [None, "{", '{"generation": -1}'], ids=["no file", "a torn file", "a wrong file"])
def test_a_start_without_a_policy_fails_with_a_sentence(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "policy.json").write_text(text)
    with pytest.raises(InvalidPolicyError, match=r"policy\.json") as caught:
        PolicyWatcher(tmp_path / "policy.json")
    assert "\n" not in str(caught.value)


def test_a_closed_watcher_follows_no_more(path: Path) -> None:
    watcher = PolicyWatcher(path, poll_s=0.001)
    watcher.close()
    watcher.close()
    path.write_text(RuntimePolicy(generation=2).to_json())
    time.sleep(0.02)
    assert watcher.current.generation == 1
