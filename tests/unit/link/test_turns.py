"""What is made ready side by side leaves in order."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.link.turns import Turns


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_who_is_ready_first_waits_and_who_gives_up_holds_nobody_up(ready: list[int], given_up: set[int]) -> None:
    async def test() -> list[int]:
        turns, left = Turns(), list[int]()
        events = [asyncio.Event() for _ in ready]

        async def leave(number: int) -> None:
            turn = turns.take()
            try:
                await events[number].wait()
                if number not in given_up:
                    await turn.come()
                    left.append(number)
            finally:
                turn.over()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for number in range(len(ready)):
                group.create_task(leave(number))
                await asyncio.sleep(0)
            for number in ready:
                events[number].set()
                await asyncio.sleep(0)
        return left

    assert asyncio.run(test()) == [number for number in range(6) if number not in given_up]


def test_a_turn_that_has_come_keeps_no_others_alive() -> None:
    async def test() -> None:
        turns = Turns()
        for _ in range(1000):
            turn = turns.take()
            await turn.come()
        assert turn._before is None

    asyncio.run(test())
