"""The compile and inference options that TIDL knows; any other key is ignored by it without a word.

Source: edgeai-tidl-tools examples/osrt_python/README.md (11.00), docs/model_compilation.md (11.02), onnxrt_ep.cpp and
tfl_delegate.cpp of SDK 11.1; the keys that TI's own edgeai-benchmark adds for itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_PLAIN = """
tidl_tools_path artifacts_folder tensor_bits accuracy_level debug_level max_num_subgraphs deny_list deny_list:layer_type
deny_list:layer_name allow_list:layer_name priority max_pre_empt_delay core_number core_start_idx model_type platform
version ti_internal_nc_flag c7x_codegen import inference_mode info
"""
_ADVANCED = """
calibration_frames calibration_iterations quantization_scale_type output_feature_16bit_names_list
params_16bit_names_list mixed_precision_factor activation_clipping weight_clipping bias_calibration
channel_wise_quantization quant_params_proto_path prequantized_model enable_tfr_optimization add_data_convert_ops
high_resolution_optimization pre_batchnorm_fold optimize_batchnorm_higherdims enable_shape_folding network_name
c7x_firmware_version max_num_subgraph_nodes enable_rt_multi_subgraph_support inference_mode num_cores
single_core_layers_names_list batch_mode packetize_mode enable_custom_layers custom_layers_names_list net_inelement_type
partial_init_during_compile log_file_name temp_buffer_dir nc_temp_info_dir flow_ctrl
"""
_DETECTION = """
meta_arch_type meta_layers_names_list confidence_threshold nms_threshold nms_type top_k keep_top_k
"""
KNOWN = frozenset(
    [
        *_PLAIN.split(),
        *(f"advanced_options:{name}" for name in _ADVANCED.split()),
        *(f"object_detection:{name}" for name in _DETECTION.split()),
    ]
)
#: Options with parts in their name, which the documentation gives as a pattern.
_PATTERNS = ("advanced_options:m_spatial_split", "advanced_options:m_channel_split")


def unknown(keys: Iterable[str]) -> dict[str, str]:
    """What TIDL ignores, each with the nearest known option, "" where none is near."""
    strangers = [key for key in keys if key not in KNOWN and not key.startswith(_PATTERNS)]
    near = {key: difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.75) for key in strangers}
    return {key: found[0] if found else "" for key, found in near.items()}
