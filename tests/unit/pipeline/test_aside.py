from __future__ import annotations

import threading

import pytest

from tidegauge.pipeline.aside import Aside
from tidegauge.pipeline.channel import ChannelClosed

DEADLINE = 60.0


class Broken(Exception):
    pass


def broken() -> None:
    raise Broken


def never() -> None:
    raise AssertionError("nothing has failed")


def test_what_is_put_aside_runs_beside_the_caller_and_in_order() -> None:
    done: list[int] = []
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        assert may_end.wait(DEADLINE)
        done.append(1)

    with Aside(never) as aside:
        aside.put(first)
        assert aside.waiting
        aside.begin()
        assert begun.wait(DEADLINE), "it runs while the caller is here"
        assert not aside.waiting
        assert done == []
        threading.Timer(0.0, may_end.set).start()
        aside.put(lambda: done.append(2))
        assert done == [1], "all that was before is done first"
        aside.finish()
        assert done == [1, 2]


def test_nothing_is_left_undone_on_the_way_out() -> None:
    done: list[int] = []
    with Aside(never) as aside:
        aside.put(lambda: done.append(1))
    assert done == [1]
    with pytest.raises(ChannelClosed), Aside(never) as aside:
        aside.put(lambda: done.append(2))
        raise ChannelClosed  # a stop in order, too, tells what has been computed
    assert done == [1, 2]


def test_an_error_wakes_the_caller_and_is_the_one_that_is_raised() -> None:
    failed = threading.Event()
    with pytest.raises(Broken), Aside(failed.set) as aside:
        aside.put(broken)
        aside.begin()
        assert failed.wait(DEADLINE), "the caller may be waiting for a message"
        raise ChannelClosed  # which is what it sees of it


def test_an_error_is_raised_before_anything_new_is_begun() -> None:
    with pytest.raises(Broken), Aside(lambda: None) as aside:
        aside.put(broken)
        aside.begin()
        aside.put(never)


def test_another_error_goes_first() -> None:
    with pytest.raises(KeyError), Aside(lambda: None) as aside:
        aside.put(broken)
        aside.begin()
        raise KeyError
