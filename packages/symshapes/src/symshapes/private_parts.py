"""The private names of torch that all packages use, and stand-ins for names that torch drops.

A stand-in lets the packages be imported. Calling or instantiating it raises :class:`MissingPart`;
the graph that needed it then runs in eager mode, with a warning.
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

import torch

# Private names by the module or class that defines them.
PARTS = {
    "torch": """
        _GLOBAL_DEVICE_CONTEXT _assert_async _check _conj _cudnn_rnn_flatten_weight
        _disable_functionalization
        _enable_functionalization
        _foreach_addcdiv_ _foreach_addcmul_ _foreach_copy_ _from_functional_tensor
        _functionalize_commit_update _functionalize_replace _functionalize_was_storage_changed
        _has_compatible_shallow_copy_type _is_all_true _is_functional_tensor
        _mirror_autograd_meta_to _neg_view _safe_softmax _sync _to_functional_tensor
    """,
    "torch.Tensor": "_make_subclass _make_wrapper_subclass _use_count",
    "torch._C": """
        DisableTorchFunction DisableTorchFunctionSubclass DispatchKey DispatchKeySet TensorBase
        _AutoDispatchBelowAutograd _DisableAutocast _DisablePythonDispatcher _DisableTorchDispatch
        _EnablePythonDispatcher _EnableTorchFunction _ExcludeDispatchKeyGuard _FunctionBase
        _PreserveDispatchKeyGuard _SDPBackend _TorchDispatchModeKey _are_functorch_transforms_active
        _autograd _construct_storage_from_data_pointer _cuda_isCurrentStreamCapturing
        _current_autograd_node _disabled_torch_dispatch_impl _disabled_torch_function_impl
        _dispatch_dump _dispatch_get_all_op_names
        _dispatch_get_registrations_for_dispatch_key _dispatch_has_kernel_for_dispatch_key
        _dispatch_keys _dispatch_tls_is_dispatch_key_excluded _ensureCUDADeviceGuardSet _from_dlpack
        _get_cublas_allow_tf32 _get_deterministic_algorithms _get_deterministic_algorithms_warn_only
        _get_deterministic_fill_uninitialized_memory _get_dispatch_mode _get_dispatch_stack_at
        _get_function_stack_at _get_tracing_state _increment_version _is_alias_of
        _is_any_autocast_enabled _is_torch_function_enabled _is_torch_function_mode_enabled
        _is_tracing _jit_resolve_packet
        _len_torch_dispatch_stack _len_torch_function_stack _log_api_usage_once _nn
        _pop_torch_dispatch_stack _push_on_torch_dispatch_stack _set_grad_enabled
        _set_meta_in_tls_dispatch_include _set_throw_on_mutable_data_ptr _storage_Use_Count
        _to_dlpack
    """,
    "torch._C.DispatchKey": """
        Autograd AutogradNestedTensor CPU CompositeImplicitAutograd Functionalize Meta Python
    """,
    "torch._C.DispatchKeySet": "from_raw_repr",
    "torch._C._TorchDispatchModeKey": "FAKE",
    "torch._C._autograd": """
        _get_current_graph_task_keep_graph _get_sequence_nr _top_saved_tensors_default_hooks
        _unsafe_set_version_counter
    """,
    "torch._C._nn": "mkldnn_reorder_conv2d_weight",
    "torch._compile": "_disable_dynamo",
    "torch._guards": "TracingContext tracing",
    "torch._library.custom_ops": "CustomOpDef OPDEFS",
    "torch._library.fake_impl": "set_ctx_getter",
    "torch._library.simple_registry": "singleton",
    "torch.nested._internal.nested_tensor": """
        NestedTensor _tensor_symint_registry get_tensor_symint nested_view_from_values_offsets
    """,
    "torch.nested._internal.ops": "_wrap_jagged_dim jagged_torch_function",
    "torch.nested._internal.sdpa": "_autocast _validate_sdpa_input",
    "torch._ops": "HigherOrderOperator OpOverload OpOverloadPacket _OpNamespace _Ops",
    "torch.amp.autocast_mode": "_enter_autocast _exit_autocast",
    "torch.autograd": "_unsafe_preserve_version_counter",
    "torch.autograd.forward_ad": "_current_level",
    "torch.autograd.grad_mode": "_enter_inference_mode _exit_inference_mode",
    "torch.compiler": "_is_compiling_flag",
    "torch.cuda": "_sleep",
    "torch.cuda.memory": "_record_memory_history _snapshot",
    "torch.fx._symbolic_trace": "_is_fx_tracing_flag is_fx_tracing",
    "torch.fx.graph_module": "_loader",
    "torch.library": "_impls",
    "torch.nn.Module": "_call_impl _wrapped_call_impl",
    "torch.optim._adafactor": "adafactor",
    "torch.optim.optimizer": "_get_value _use_grad_for_differentiable",
    "torch.overrides": "_get_current_function_mode_stack _pop_mode _push_mode",
    "torch.utils._device": "DeviceContext _device_constructors",
    "torch.utils._python_dispatch": """
        TorchDispatchMode _disable_current_modes _get_current_dispatch_mode_stack
        _len_torch_dispatch_stack
    """,
    "torch.utils._pytree": """
        GetAttrKey SequenceKey TreeSpec _broadcast_to_and_flatten tree_flatten
        tree_flatten_with_path tree_leaves tree_map tree_map_only tree_unflatten
        treespec_dumps treespec_loads
    """,
    "torch.utils.checkpoint": "_CachedTorchDispatchMode _CachingTorchDispatchMode",
}
# Private names that only CUDA builds define.
CUDA_PARTS = {
    "torch._C": """
        _construct_CUDA_Tensor_From_Storage_And_Metadata _cuda_clearCublasWorkspaces
        _cuda_endAllocateToPool _cuda_getCurrentRawStream _cuda_getDevice _cuda_releasePool
    """
}


class MissingPart(NotImplementedError):
    """This version of torch lacks a private name that is needed."""


class MissingPartsWarning(UserWarning):
    """This version of torch lacks private names that these packages use."""


class _StandIn(type):
    """Metaclass of stand-ins, which are classes so that others can derive from them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(
                f"torch {torch.__version__} has no {cls.missing_part}, and so no {name} of it"
            )
        return stand_in(f"{cls.missing_part}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingPart(f"torch {torch.__version__} has no {cls.missing_part}, which this needs")


def stand_in(name: str) -> Any:
    """A stand-in for the missing part with this path."""
    return _StandIn(name, (), {"__module__": "torch", "missing_part": name})


def _parts() -> Iterator[tuple[str, Any, str]]:
    for path, names in [*PARTS.items(), *(CUDA_PARTS.items() if torch.version.cuda else ())]:
        # The owner itself may be missing; it is listed under its own owner.
        with suppress(ImportError, AttributeError):
            owner = pkgutil.resolve_name(path)
            yield from ((path, owner, name) for name in names.split())


def replace_missing() -> None:
    """Installs stand-ins for missing parts, with a warning."""
    missing = []
    for path, owner, name in _parts():
        if not hasattr(owner, name):
            missing.append(f"{path}.{name}")
            if not isinstance(owner, _StandIn):
                setattr(owner, name, stand_in(f"{path}.{name}"))
    if missing:
        warnings.warn(
            f"torch {torch.__version__} lacks {', '.join(missing)}. What needs them runs in eager "
            f"mode.",
            MissingPartsWarning,
            stacklevel=2,
        )


replace_missing()
