"""The real ONNX Runtime, in which TIDL's provider can't be constructed: its own fallback does the rest."""

from __future__ import annotations

from typing import Any

import onnxruntime
from onnxruntime import SessionOptions

__all__ = ["InferenceSession", "SessionOptions", "get_available_providers"]


def get_available_providers() -> list[str]:
    return ["TIDLExecutionProvider", *onnxruntime.get_available_providers()]


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    def _create_inference_session(self, providers: Any, provider_options: Any, *rest: Any) -> None:
        if providers and providers[0] == "TIDLExecutionProvider":
            # What ORT_ENFORCE in the provider's constructor becomes.
            self._fallback_providers = ["CPUExecutionProvider"]
            raise RuntimeError("TIDL_populateOptions failed")
        super()._create_inference_session(providers, provider_options, *rest)
