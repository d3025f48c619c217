"""What a reference belongs to: artifacts, model, and what computes on either side. A change makes it void."""

from __future__ import annotations

from tidegauge.agent.bundling import Identity
from tidegauge.agent.samples import Belongs
from tidegauge.agent.state import StateStore
from tidegauge.pipeline.messages import PipelineReady, ShadowReady

#: Of the board's versions, those that decide what an inference computes.
SDK = "edgeai_sdk"
VERSIONS = (SDK,)
#: Before the name of one, in the state.
BOARD = "board "
#: What the workers tell and what doesn't.
INDIFFERENT = frozenset({"python"})


class Belonging:
    """Compares what runs with what is stored. Each method returns what has changed, in words, and stores what is."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._known: set[str] = set()

    def begin(self, identity: Identity) -> str:
        """Before any worker runs: the files, and the SDK's version where the board tells it."""
        state = self._store.state
        changes = [
            name
            for name, before, now in (
                ("the artifacts", state.artifacts, identity.artifacts_sha256),
                ("the model", state.model, identity.model),
            )
            if before and before != now
        ]
        self._store.update(artifacts=identity.artifacts_sha256, network=identity.network_sha256, model=identity.model)
        versions = {f"{BOARD}{name}": identity.versions[name] for name in VERSIONS if name in identity.versions}
        changes += self._note("board", versions)
        return " and ".join(changes)

    def device(self, ready: PipelineReady) -> str:
        """A device session has told what computes."""
        found = {f"device {name}": version for name, version in ready.libraries.items() if name not in INDIFFERENT}
        return " and ".join(self._note("device", found | {"device runtime": ready.runtime}))

    def reference(self, ready: ShadowReady) -> str:
        """The reference has."""
        found = {f"reference {name}": version for name, version in ready.libraries.items() if name not in INDIFFERENT}
        return " and ".join(self._note("reference", found | {"reference runtime": ready.runtime}))

    @property
    def complete(self) -> bool:
        """Whether both sides have told since the agent's start."""
        return {"device", "reference"} <= self._known

    @property
    def belongs(self) -> Belongs:
        state = self._store.state
        return Belongs(state.artifacts, state.model, state.runtime)

    def _note(self, side: str, found: dict[str, str]) -> list[str]:
        """Store what a side tells. What was not known before is no change."""
        self._known.add(side)
        stored = self._store.state.runtime
        before = {name: version for name, version in stored.items() if name.split()[0] == side}
        if before == found:
            return []
        others = {name: version for name, version in stored.items() if name not in before}
        self._store.update(runtime=others | found)
        if not before:
            return []
        names = sorted(name for name in before.keys() | found.keys() if before.get(name) != found.get(name))
        return [f"{name} ({before.get(name, 'none')} to {found.get(name, 'none')})" for name in names]
