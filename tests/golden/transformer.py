#!/usr/bin/env python3
"""Golden numbers for model-transformer, from transformers and torch: tests/golden/data/NAME/.

    python3 transformer.py [NAME ...]  # needs torch, transformers, safetensors; made with the versions in expected.json

NAME/config.json, model.safetensors   a tiny model in Hugging Face's format (fp32)
NAME/expected.safetensors             ids, labels [steps, batch, seq]; logits and grad.TENSOR of the first batch at the
                                      initial weights, computed in fp64, stored in fp32
NAME/expected.json                    losses and gradient norms (before clipping) of 20 AdamW steps with clipping, fp64
NAME-documents/                       the same, of sequences of several documents: attention does not cross them, by an
                                      explicit block-diagonal mask, and "positions" count from 0 in each; labels of
                                      last tokens are -100
rope.json                             inverse frequencies of transformers' own functions
"""
import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

STEPS, BATCH, SEQ, VOCAB = 20, 4, 8, 32
LR, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0
DATA = pathlib.Path(__file__).resolve().parent / "data"

LLAMA = dict(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=24, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
MODELS = {
    "gpt2": transformers.GPT2Config(vocab_size=VOCAB, n_positions=12, n_embd=12, n_layer=2, n_head=3, n_inner=20,
                                    attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None,
                                    eos_token_id=None),
    "llama": transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False),
    # Tied head, heads wider than hidden / heads, long-context frequencies.
    "llama-tied": transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True, head_dim=6, rope_parameters=LLAMA3),
    "qwen2": transformers.Qwen2Config(**LLAMA, tie_word_embeddings=False),
    "mistral": transformers.MistralConfig(**LLAMA, tie_word_embeddings=False, head_dim=6, sliding_window=None),
    # transformers keeps all experts in one tensor and writes a file tensor for each.
    "mixtral": transformers.MixtralConfig(**LLAMA, tie_word_embeddings=False, num_local_experts=5, num_experts_per_tok=2),
    # The balance loss of transformers is over all tokens of all layers; heddle's is a sequence's and a layer's, so it is asked
    # for each of them, and the mean is taken. Its file holds the tensors as transformers keeps them.
    "mixtral-aux": transformers.MixtralConfig(**LLAMA, tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2,
                                              router_aux_loss_coef=0.5, output_router_logits=True),
    "qwen3": transformers.Qwen3Config(**LLAMA, tie_word_embeddings=False, head_dim=6),
    # Not a family of model-transformer: the example model-neox. Half of each head is rotated.
    "neox": transformers.GPTNeoXConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                       intermediate_size=40, max_position_embeddings=64, tie_word_embeddings=False,
                                       rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                                        "partial_rotary_factor": 0.5},
                                       bos_token_id=None, eos_token_id=None),
}


KEPT = {"mixtral-aux"}  # file tensors as transformers has them in memory


def make_model(config, generator):
    """A model whose every parameter matters: no zeros, no ones."""
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"  # the only one that computes in fp64
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.25 if p.dim() > 1 else 0.1, generator=generator)
            if p.dim() == 1 and name.endswith("weight"):
                p += 1
    return model.eval()


def loss_of(model, ids, labels, positions=None):
    apart = {}
    if positions is not None:
        which = torch.cumsum(positions == 0, -1)
        seen = (which[:, :, None] == which[:, None, :]).tril()[:, None]
        apart = dict(position_ids=positions, attention_mask=torch.zeros(seen.shape, dtype=model.dtype).masked_fill(
            ~seen, torch.finfo(model.dtype).min))
    logits = model(input_ids=ids, use_cache=False, **apart).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1)), logits


def auxiliary(model, ids):
    """What is minimised beside the loss."""
    config = model.config
    if not getattr(config, "output_router_logits", False):
        return 0.0
    balance = transformers.models.mixtral.modeling_mixtral.load_balancing_loss_func
    layers = model(input_ids=ids, use_cache=False, output_router_logits=True).router_logits
    each = [balance((sequence,), config.num_local_experts, config.num_experts_per_tok)
            for logits in layers for sequence in logits.reshape(ids.shape[0], -1, config.num_local_experts)]
    return config.router_aux_loss_coef * sum(each) / len(each)


def file_tensors(gradients, model, name):
    """Gradients by the names that tensors have in the file."""
    if model.config.model_type == "gpt_neox":
        return {tensor.replace("lm_head", "embed_out"): g for tensor, g in gradients.items()}
    if model.config.model_type != "mixtral" or name in KEPT:
        return gradients
    out = {}
    for tensor, g in gradients.items():
        base = tensor.replace(".mlp.", ".block_sparse_moe.")
        for e in range(model.config.num_local_experts):
            if tensor.endswith("gate_up_proj"):
                w1, w3 = g[e].chunk(2)
                out[base.replace("gate_up_proj", f"{e}.w1.weight")] = w1.contiguous()
                out[base.replace("gate_up_proj", f"{e}.w3.weight")] = w3.contiguous()
            elif tensor.endswith("down_proj"):
                out[base.replace("down_proj", f"{e}.w2.weight")] = g[e].contiguous()
        if "experts" not in tensor:
            out[base] = g
    return out


def documents(tokens, generator):
    """Positions in documents of about 3 tokens, and labels without those of last tokens."""
    begins = torch.rand(tokens.shape, generator=generator) < 0.3
    begins[..., 0] = True
    positions = torch.zeros(tokens.shape, dtype=torch.long)
    for i in range(1, tokens.shape[-1]):
        positions[..., i] = torch.where(begins[..., i], 0, positions[..., i - 1] + 1)
    return positions[..., :-1], tokens[..., 1:].masked_fill(begins[..., 1:], -100)


def train(model, tokens, labels, positions):
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step, batch in enumerate(tokens):
        optimizer.zero_grad(set_to_none=True)
        loss, _ = loss_of(model, batch[:, :-1], labels[step], positions[step])
        (loss + auxiliary(model, batch[:, :-1])).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms


def make(name, config, seed):
    folder = DATA / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    model = make_model(config, generator)
    model.save_pretrained(folder, save_original_format=name not in KEPT)
    (folder / "generation_config.json").unlink(missing_ok=True)

    model = model.double()
    tokens = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ + 1), generator=generator)
    positions, labels = [None] * STEPS, tokens[:, :, 1:]
    if name.endswith("-documents"):
        positions, labels = documents(tokens, generator)
    loss, logits = loss_of(model, tokens[0, :, :-1], labels[0], positions[0])
    (loss + auxiliary(model, tokens[0, :, :-1])).backward()
    expected = file_tensors({"grad." + n: p.grad.float().contiguous() for n, p in model.named_parameters()}, model, name)
    expected["logits"] = logits.detach().float().contiguous()
    expected["ids"] = tokens[:, :, :-1].int().contiguous()
    expected["labels"] = labels.int().contiguous()
    if positions[0] is not None:
        expected["positions"] = positions.int().contiguous()
    save_file(expected, folder / "expected.safetensors")
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)

    losses, norms = train(model, tokens, labels, positions)
    numbers = dict(steps=STEPS, batch=BATCH, seq=SEQ, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, clip=CLIP,
                   parameters=sum(p.numel() for p in model.parameters()), losses=losses, grad_norms=norms,
                   torch=torch.__version__.split("+")[0], transformers=transformers.__version__)
    (folder / "expected.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, grad norm {norms[0]:.3f} -> {norms[-1]:.3f}")


def make_rope():
    cases = {
        "default": ({"rope_type": "default", "rope_theta": 10000.0}, 64),
        "linear": ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}, 64),
        "llama3": ({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, 128),
    }
    rows = {}
    for name, (parameters, head_dim) in cases.items():
        config = transformers.LlamaConfig(hidden_size=head_dim * 2, num_attention_heads=2,
                                          max_position_embeddings=16384, rope_parameters=parameters)
        if name == "default":
            model = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
            table, scale = model.inv_freq, model.attention_scaling
        else:
            table, scale = ROPE_INIT_FUNCTIONS[name](config, "cpu")
        assert scale == 1.0
        rows[name] = dict(head_dim=head_dim, rope_parameters=parameters, frequencies=[float(x) for x in table])
    (DATA / "rope.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name in ("gpt2", "llama"): # behind all others, whose seeds stay
        MODELS[name + "-documents"] = copy.deepcopy(MODELS[name])
    wanted = sys.argv[1:] or [*MODELS, "rope"]
    for seed, (name, config) in enumerate(MODELS.items(), 100):
        if name in wanted:
            make(name, config, seed)
    if "rope" in wanted:
        make_rope()
