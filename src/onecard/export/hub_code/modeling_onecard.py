"""onecard's modern recipe for transformers: loaded with trust_remote_code=True, no other package needed.

GPT-2's matrices with other parts between them: rotary positions, RMSNorm without weights (on queries and keys too),
squared ReLU, a short causal convolution behind each norm, an output head of its own with softly capped logits.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

TAPS = 4  # positions that a short convolution sees: the token itself and three before it


class OnecardModernConfig(PreTrainedConfig):
    model_type = "onecard_modern"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "block_size",
    }

    def __init__(
        self,
        vocab_size=50257,
        n_layer=12,
        n_head=12,
        n_embd=768,
        block_size=1024,
        bias=False,
        soft_cap=15.0,
        rotary_base=10_000.0,
        tie_word_embeddings=False,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.n_layer = n_layer
        self.n_head = n_head
        self.n_embd = n_embd
        self.block_size = block_size
        self.bias = bias
        self.soft_cap = soft_cap
        self.rotary_base = rotary_base
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)


def rms_norm(x):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps)
    return (wide * scale).to(x.dtype)


def rotate(x, cosine, sine):
    """x is (batch, heads, length, head width); each half's pairs turn by their position's angle."""
    half = x.shape[-1] // 2
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cosine + b * sine, b * cosine - a * sine, rest), dim=-1).to(x.dtype)


class ShortConvolution(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.taps = nn.Parameter(torch.zeros(TAPS, width))

    def forward(self, x, cache, place):
        """x + Σ taps[k] · x[t − k]; the inputs so far are kept as one more layer of the cache."""
        seen = x
        if cache is not None:
            seen = cache.update(x[:, None], x[:, None, :, :0], place)[0][:, 0]
        padded = F.pad(seen, (0, 0, TAPS - 1, 0))[:, -(x.shape[1] + TAPS - 1) :]
        y = x
        for back in range(TAPS):
            start = TAPS - 1 - back
            y = y + self.taps[back] * padded[:, start : start + x.shape[1]]
        return y


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x, turn, mask, cache, layer):
        batch, length, width = x.shape
        heads = (batch, length, 3, self.n_head, width // self.n_head)
        q, k, v = self.c_attn(x).view(heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(rms_norm(q), *turn), rotate(rms_norm(k), *turn)
        if cache is not None:
            k, v = cache.update(k, v, layer)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x):
        return self.c_proj(F.relu(self.c_fc(x)).square())


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.layer = layer
        # the cache's layers: first every attention, then both convolutions of every block
        self.places = (config.n_layer + 2 * layer, config.n_layer + 2 * layer + 1)
        self.recent_1 = ShortConvolution(config.n_embd)
        self.attn = Attention(config)
        self.recent_2 = ShortConvolution(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x, turn, mask, keep, cache):
        mixed = self.recent_1(rms_norm(x) * keep, cache, self.places[0])
        x = x + self.attn(mixed, turn, mask, cache, self.layer)
        return x + self.mlp(self.recent_2(rms_norm(x) * keep, cache, self.places[1]))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))


class OnecardModernForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = OnecardModernConfig
    base_model_prefix = "transformer"
    _no_split_modules = ["Block"]  # noqa: RUF012
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.transformer.wte

    def set_input_embeddings(self, value):
        self.transformer.wte = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        **kwargs,
    ):
        if inputs_embeds is None:
            inputs_embeds = self.transformer.wte(input_ids)
        cache = past_key_values
        if cache is None and use_cache:
            cache = DynamicCache()
        if cache is not None:
            missing = 3 * self.config.n_layer - len(cache.layers)
            cache.layers.extend(DynamicLayer() for _ in range(missing))
        start = cache.get_seq_length() if cache is not None else 0
        length = inputs_embeds.shape[1]
        mask, keep = self._masks(attention_mask, start, length, inputs_embeds)
        turn = self._turn(start, length, inputs_embeds.device)
        x = rms_norm(inputs_embeds)
        for block in self.transformer.h:
            x = block(x, turn, mask, keep, cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        cap = self.config.soft_cap
        logits = cap * torch.tanh(self.lm_head(rms_norm(x)[:, kept]).float() / cap)
        loss = None
        if labels is not None:
            ahead = labels[:, 1:].reshape(-1).to(logits.device)
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ahead)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def _masks(self, attention_mask, start, length, like):
        """Who may look at whom, (batch, 1, length, all); and 0 at padding, whose values no convolution may mix in."""
        total = start + length
        causal = torch.ones(length, total, dtype=torch.bool, device=like.device).tril(start)
        if attention_mask is None or attention_mask.dim() != 2:
            return causal, 1.0
        there = attention_mask[:, :total].bool()
        mask = causal[None, None] & there[:, None, None, :]
        # a row of padding looks at itself: a softmax over nothing is not a number
        own = torch.eye(total, dtype=torch.bool, device=like.device)[start:]
        return mask | own, there[:, start:, None].to(like.dtype)

    def _turn(self, start, length, device):
        half = self.config.n_embd // self.config.n_head // 2
        exponents = torch.arange(half, device=device, dtype=torch.float32) / max(half, 1)
        frequencies = self.config.rotary_base**-exponents
        positions = torch.arange(start, start + length, device=device, dtype=torch.float32)
        angles = positions[:, None] * frequencies
        return angles.cos(), angles.sin()
