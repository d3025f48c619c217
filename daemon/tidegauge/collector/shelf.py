"""Where received files go: the parts that every reception shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.config import LimitsConfig, PullConfig, TrustPolicy
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.partial import Partials
from tidegauge.collector.store import Store
from tidegauge.collector.transfer_rows import Claimant
from tidegauge.collector.trust import Trust

ASKS_FOR_ALL = PullConfig()
#: Called with (device, bundle) when a bundle has become complete.
Completed = Callable[[str, str], None]


@dataclass(frozen=True)
class Shelf:
    """Where received files go. `me`: this process, to the others of the same database."""

    store: Store
    blobs: BlobStore
    partials: Partials
    limits: LimitsConfig
    metrics: CollectorMetrics
    completed: Completed
    me: Claimant
    policy: TrustPolicy = "first_use"
    pull: PullConfig = ASKS_FOR_ALL

    @cached_property
    def trust(self) -> Trust:
        """Whose manifests are taken in."""
        return Trust(self.store, self.policy)
