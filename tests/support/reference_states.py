"""Hidden states by transformers, to hold against those that a verifier captured.

    python -m tests.support.reference_states MODEL_DIR CAPTURED.safetensors 1,2,3,4

In: a checkpoint folder, token ids, layer ids. Out: float32 states [S, L, H] of a plain forward
pass, and the relative L2 distance of each captured slot. No service and no vLLM takes part.
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedModel


def reference_hidden_states(model_dir: Path | str, token_ids: Sequence[int], layer_ids: Sequence[int]) -> Tensor:
    """Return the residual stream after each of `layer_ids` layers: [S, L, H], float32.

    Id 0 is the embedding; id `num_hidden_layers` is the state before the final norm (transformers'
    own last hidden state comes after it, hence the hooks).

    Raises:
        IndexError: a layer id is above the number of layers.
    """
    model = _load(str(model_dir))
    layers = model.model.language_model.layers
    seen: dict[int, Tensor] = {}
    hooks = [
        layer.register_forward_hook(lambda _m, _i, output, k=k: seen.__setitem__(k, _first(output)))
        for k, layer in enumerate(layers, start=1)
    ]
    hooks.append(layers[0].register_forward_pre_hook(lambda _m, args: seen.__setitem__(0, args[0])))
    try:
        with torch.no_grad():
            model(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if beyond := [k for k in layer_ids if k not in seen]:
        raise IndexError(f"layers {beyond} do not exist: {model_dir} has {len(layers)}")
    return torch.stack([seen[k][0] for k in layer_ids], dim=1)


def greedy_reference(
    model_dir: Path | str, prompt_ids: Sequence[int], max_new_tokens: int
) -> tuple[list[int], list[float]]:
    """Continue greedily, ending with `<|im_end|>`; return the new ids and each step's lead.

    The lead is the difference between the two highest log-probabilities: near zero means that
    another implementation may rightly choose differently.
    """
    model = _load(str(model_dir))
    result = model.generate(
        torch.tensor([list(prompt_ids)]),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = [logits[0].float().log_softmax(-1).topk(2).values for logits in result.logits]
    return result.sequences[0, len(prompt_ids) :].tolist(), [float(a - b) for a, b in best]


def relative_error(captured: Tensor, reference: Tensor) -> list[float]:
    """Relative L2 distance of each layer slot; both are [S, L, H]."""
    difference = (captured.float() - reference).norm(dim=(0, 2))
    return (difference / reference.norm(dim=(0, 2))).tolist()


@cache
def _load(model_dir: str) -> PreTrainedModel:
    return AutoModelForImageTextToText.from_pretrained(model_dir, dtype=torch.float32).eval()


def _first(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def main() -> None:
    """Print the relative error of each slot of one captured file."""
    model_dir, captured, layer_ids = sys.argv[1:]
    ids = [int(k) for k in layer_ids.split(",")]
    tensors = load_file(captured)
    reference = reference_hidden_states(model_dir, tensors["token_ids"].tolist(), ids)
    for k, error in zip(ids, relative_error(tensors["hidden_states"], reference), strict=True):
        print(f"layer {k}: relative L2 error {error:.2e}")


if __name__ == "__main__":
    main()
