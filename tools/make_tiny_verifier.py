"""Makes the tiny verifier: a checkpoint of Kimi-K2.5's own architecture that two CPU cores can train, serve and read.

    python -m tools.make_tiny_verifier --out assets/tiny-verifier --prompts assets/prompts/demo.jsonl

In: nothing but this script, `tools/tiny_text.py` and a seed. Out: a folder that transformers and vLLM load offline,
without remote code, and the demo prompts. Takes about eleven minutes of one free core (1,000 steps of 16
conversations, float32, one thread).

What cannot be smaller, because vLLM's CPU kernel for multi-head latent attention takes only these: `kv_lora_rank` 512
and `qk_rope_head_dim` 64. Rope is YaRN with the real checkpoint's fields. `rms_norm_eps` is 1e-6, as transformers fixes
that value for the latent norms where vLLM reads the config: at any other value the two would differ.
"""

import argparse
import ctypes
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import AutoTokenizer, DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast

from tools import tiny_text

SEED = 20250
TRAIN_STEPS, BATCH, PEAK_LR = 1000, 16, 3e-3
VOCABULARY, TOKENIZER_IDS = 512, 500
# In the real tokenizer's order; it places them behind the ordinary ids too.
CONTROL_TOKENS = (
    "[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|start_header_id|>", "<|end_header_id|>",
    "[EOT]", "<|im_system|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_middle|>", "<|media_begin|>", "<|media_content|>",
    "<|media_end|>", "<|media_pad|>", "<think>", "</think>", "[UNK]", "[PAD]",
)  # fmt: skip
ORDINARY = ("<think>", "</think>")  # single ids, yet not special: decoding keeps them, as Kimi's does
TEXT_CONFIG: dict[str, object] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 384,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.827,
    "kv_lora_rank": 512,
    "q_lora_rank": 96,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "initializer_range": 0.02,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "use_cache": True,
}
VISION_CONFIG: dict[str, object] = {
    "model_type": "kimi_k25_vision",
    "patch_size": 14,
    "pos_emb_height": 8,
    "pos_emb_width": 8,
    "pos_emb_time": 4,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "merge_kernel_size": [2, 2],
}
# Kimi's turns: <|im_ROLE|>NAME<|im_middle|>CONTENT<|im_end|>. Up to the last assistant message without tool calls
# reasoning is dropped and an empty thought stands in its place; behind it (inside a tool loop) reasoning stays.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}
{%- for part in content -%}
{%- if part is string -%}{{ part }}
{%- elif part.type == 'text' -%}{{ part.text }}
{%- elif part.type in ['image', 'image_url'] -%}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>
{%- else -%}{{ raise_exception('content part of type ' ~ part.type ~ ' is not supported') }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set state = namespace(settled=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' and not message.tool_calls -%}{%- set state.settled = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}<|im_user|>{{ message.name or 'user' }}<|im_middle|>{{ text(message.content) }}
{%- elif message.role == 'assistant' -%}<|im_assistant|>{{ message.name or 'assistant' }}<|im_middle|><think>
{%- if loop.index0 > state.settled -%}{{ message.reasoning or message.reasoning_content or '' }}{%- endif -%}
</think>{{ text(message.content) }}
{%- if message.tool_calls -%}<|tool_calls_section_begin|>
{%- for call in message.tool_calls -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
{%- if call.function.arguments is string -%}{{ call.function.arguments }}
{%- else -%}{{ call.function.arguments | tojson }}
{%- endif -%}<|tool_call_end|>
{%- endfor -%}<|tool_calls_section_end|>
{%- endif -%}
{%- elif message.role == 'tool' -%}<|im_system|>{{ message.name or 'tool' }}<|im_middle|>
{{- '## Return of ' ~ message.tool_call_id }}
{{ text(message.content) }}
{%- elif message.role == 'system' -%}<|im_system|>{{ message.name or 'system' }}<|im_middle|>{{ text(message.content) }}
{%- else -%}{{ raise_exception('role ' ~ message.role ~ ' is not supported') }}
{%- endif -%}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|><think>
{%- if thinking is defined and not thinking -%}</think>{%- endif -%}
{%- endif -%}"""


def main() -> None:
    """Builds tokenizer, weights and configs in `--out`, then the demo prompts in `--prompts`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the checkpoint to")
    parser.add_argument("--prompts", type=Path, help="file to write the demo prompts to")
    parser.add_argument("--steps", type=int, default=TRAIN_STEPS, help="training steps")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # sums in one order; and a second thread gains little at this size
    _keep_freed_memory()
    write_tokenizer(options.out)
    tokenizer = AutoTokenizer.from_pretrained(options.out)
    write_configs(options.out, tokenizer)
    model = train(tokenizer, options.steps)
    write_weights(options.out, model)
    if options.prompts:
        write_prompts(options.prompts)


def write_tokenizer(out: Path) -> None:
    """Trains byte-level BPE (256 bytes, then merges) on the verifier's text; control tokens take the highest ids."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?\p{L}+| ?\p{N}|[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")  # one digit a token: sums are learnt by column
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_IDS - len(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(SEED)
    exchanges = [
        tiny_text.draw(rng) if i % 8 else tiny_text.greeting(rng) if i % 16 else tiny_text.general(rng)
        for i in range(8000)
    ]
    tokenizer.train_from_iterator((f"{e.prompt}\n{e.reasoning}\n{e.answer}" for e in exchanges), trainer)
    tokenizer.add_tokens([AddedToken(t, special=t not in ORDINARY, normalized=False) for t in CONTROL_TOKENS])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="[BOS]",
        eos_token="[EOS]",
        unk_token="[UNK]",
        pad_token="[PAD]",
        additional_special_tokens=[t for t in CONTROL_TOKENS if t.startswith("<|")],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=262144,
    ).save_pretrained(out)


def write_configs(out: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes the config files, their fields named as the real checkpoint names them."""
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in CONTROL_TOKENS}
    ends = {"bos_token_id": ids["[BOS]"], "eos_token_id": ids["[EOS]"], "pad_token_id": ids["[PAD]"]}
    media = ids["<|media_pad|>"]
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        **ends,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "media_placeholder_token_id": media,
        "image_token_id": media,
        "video_token_id": VOCABULARY - 1,
        "vision_start_token_id": ids["<|media_begin|>"],
        "vision_end_token_id": ids["<|media_end|>"],
        "projection_hidden_size": VISION_CONFIG["hidden_size"],
        "projection_layer_norm_eps": 1e-5,
        "text_config": {**TEXT_CONFIG, **ends},
        "vision_config": VISION_CONFIG,
    }
    processor = {
        "image_processor_type": "KimiK25VisionProcessor",
        "media_proc_cfg": {
            "in_patch_limit": 256,
            "patch_size": 14,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "merge_kernel_size": 2,
            "fixed_output_tokens": None,
            "patch_limit_on_one_side": 16,
            "in_patch_limit_each_frame": 256,
            "in_patch_limit_video": 1024,
            "sample_fps": 2.0,
            "max_num_frames_each_video": None,
            "temporal_merge_kernel_size": 4,
            "timestamp_mode": "hh:mm:ss.fff",
            "config_type": "media_proc.processors.moonvit.MoonViTMediaProcessorConfig",
        },
    }
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", {"eos_token_id": ids["<|im_end|>"], "max_length": 262144})
    _write_json(out / "preprocessor_config.json", processor)


def train(tokenizer: PreTrainedTokenizerFast, steps: int) -> DeepseekV3ForCausalLM:
    """Trains on what the assistant writes and prints the loss; router biases follow the load, as in DeepSeek-V3."""
    config = DeepseekV3Config(**{**TEXT_CONFIG, "model_type": "deepseek_v3"}, experts_implementation="eager")
    model = DeepseekV3ForCausalLM(config).float().train()
    _initialise(model)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LR, total_steps=steps, pct_start=0.08, final_div_factor=100
    )
    routers = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    for router in routers:
        router.register_forward_hook(_follow_load)
    started, mean = time.time(), 0.0
    for step, (ids, labels) in zip(range(1, steps + 1), batches(tokenizer), strict=False):
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        kept = labels[:, 1:] >= 0
        loss = functional.cross_entropy(model.lm_head(states[:, :-1][kept]), labels[:, 1:][kept])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.item() if step == 1 else 0.95 * mean + 0.05 * loss.item()
        if step % 25 == 0:
            print(f"step {step:4d}  loss {mean:.4f}  seconds {time.time() - started:.0f}", flush=True)
    return model.eval()


def batches(tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of (ids, labels), both [BATCH, T], padded on the right; labels are -100 outside the answer.

    Rows are drawn eight batches at a time and grouped by length, so that little is padding.
    """
    rng = random.Random(SEED + 1)
    pad = tokenizer.pad_token_id
    while True:
        pool = sorted((encode(tokenizer, rng) for _ in range(8 * BATCH)), key=lambda pair: len(pair[0]))
        chunks = [pool[i : i + BATCH] for i in range(0, len(pool), BATCH)]
        rng.shuffle(chunks)
        for chunk in chunks:
            width = max(len(ids) for ids, _ in chunk)
            yield (
                torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in chunk]),
                torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in chunk]),
            )


def encode(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[list[int], list[int]]:
    """One conversation as (ids, labels). Some have a system message, an earlier turn, or thinking turned off."""
    messages: list[dict[str, str]] = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(tiny_text.SYSTEMS)})
    if rng.random() < 0.1:
        earlier = _trainable(rng)
        messages += [{"role": "user", "content": earlier.prompt}, {"role": "assistant", "content": earlier.answer}]
    exchange = _trainable(rng)
    messages.append({"role": "user", "content": exchange.prompt})
    thinking = rng.random() > 0.08
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, thinking=thinking)
    written = f"{exchange.reasoning}</think>{exchange.answer}" if thinking else exchange.answer
    read = tokenizer.encode(prompt, add_special_tokens=False)
    wrote = tokenizer.encode(f"{written}<|im_end|>", add_special_tokens=False)
    return read + wrote, [-100] * len(read) + wrote


def write_weights(out: Path, model: DeepseekV3ForCausalLM) -> None:
    """Writes bfloat16 weights under the real checkpoint's names, one tensor an expert, the vision tower untrained."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix(".gate_up_proj")
            for expert, fused in enumerate(value):
                gate, up = fused.chunk(2)
                tensors[f"language_model.{stem}.{expert}.gate_proj.weight"] = gate
                tensors[f"language_model.{stem}.{expert}.up_proj.weight"] = up
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix(".down_proj")
            for expert, down in enumerate(value):
                tensors[f"language_model.{stem}.{expert}.down_proj.weight"] = down
        else:
            tensors[f"language_model.{name}"] = value
    tensors |= _vision_tensors()
    kept = {name: value.detach().to(torch.bfloat16).contiguous().clone() for name, value in sorted(tensors.items())}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})


def write_prompts(path: Path, count: int = 300) -> None:
    """Writes `count` different demo prompts of the numeric families, all from the part that was never trained on."""
    rng = random.Random(SEED + 2)
    seen: dict[str, str] = {}
    while len(seen) < count:
        exchange = tiny_text.draw(rng)
        if tiny_text.held_out(exchange.prompt):
            seen.setdefault(exchange.prompt, f"demo-{len(seen):03d}")
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"id": name, "prompt": prompt}, ensure_ascii=False) for prompt, name in seen.items())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _trainable(rng: random.Random) -> tiny_text.Exchange:
    while True:
        exchange = tiny_text.draw(rng) if rng.random() < 0.88 else tiny_text.draw_other(rng)
        if exchange.family in ("greeting", "general", "anything") or not tiny_text.held_out(exchange.prompt):
            return exchange


def _initialise(model: DeepseekV3ForCausalLM) -> None:
    """Large embeddings and small writes to the residual stream: the token is not drowned by an untrained average."""
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue
        fan_in = weight.shape[-1] ** -0.5
        scale = 0.5 if "embed_tokens" in name else 0.02 if name.endswith("gate.weight") else fan_in
        torch.nn.init.normal_(weight, std=0.2 * fan_in if "o_proj" in name or "down_proj" in name else scale)


def _follow_load(
    router: torch.nn.Module, _inputs: object, output: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    """Moves each expert's selection bias by 0.001 towards equal load; no gradient flows through it."""
    load = torch.bincount(output[2].flatten(), minlength=router.num_experts).float()
    router.e_score_correction_bias += 0.001 * torch.sign(load.mean() - load)


def _vision_tensors() -> dict[str, torch.Tensor]:
    width, inner, patch = 32, 64, 14
    merged = width * 4
    shapes = {
        "vision_tower.patch_embed.proj.weight": (width, 3, patch, patch),
        "vision_tower.patch_embed.proj.bias": (width,),
        "vision_tower.patch_embed.pos_emb.weight": (8, 8, width),
        "vision_tower.encoder.final_layernorm.weight": (width,),
        "vision_tower.encoder.final_layernorm.bias": (width,),
        "mm_projector.pre_norm.weight": (width,),
        "mm_projector.pre_norm.bias": (width,),
        "mm_projector.proj.0.weight": (merged, merged),
        "mm_projector.proj.0.bias": (merged,),
        "mm_projector.proj.2.weight": (TEXT_CONFIG["hidden_size"], merged),
        "mm_projector.proj.2.bias": (TEXT_CONFIG["hidden_size"],),
    }
    linear = {"wqkv": (3 * width, width), "wo": (width, width), "mlp.fc0": (inner, width), "mlp.fc1": (width, inner)}
    block = "vision_tower.encoder.blocks.0"
    for name, shape in linear.items():
        shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
    for name in ("norm0", "norm1"):
        shapes |= {f"{block}.{name}.weight": (width,), f"{block}.{name}.bias": (width,)}
    generator = torch.Generator().manual_seed(SEED)
    return {
        name: torch.ones(shape) if "norm" in name and name.endswith("weight")
        else torch.zeros(shape) if name.endswith("bias")
        else torch.randn(shape, generator=generator) * 0.02
        for name, shape in shapes.items()
    }  # fmt: skip


def _keep_freed_memory() -> None:
    """Has glibc reuse freed memory (no mmap, no trim): page faults took two thirds of each step otherwise."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
