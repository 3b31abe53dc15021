"""A tokenizer that somebody has made, from the `tokenizer.json` of a folder: nothing is downloaded, no code is run.

Such a file names the parts that a tokenizer is made of, and some of them hold a regular expression, which one may write
so that it is tried on a text for hours. Parts are therefore allowed by name, and expressions only where they are those
of well-known models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

NAME = "tokenizer.json"
_MOST_BYTES = 2**27
_MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram")
_NORMALIZERS = (
    *("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Prepend", "Replace"),
    *("Nmt", "Precompiled", "Sequence"),
)
_PRE_TOKENIZERS = (
    *("ByteLevel", "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "Punctuation", "Digits"),
    *("UnicodeScripts", "CharDelimiterSplit", "Split", "Sequence"),
)
_DECODERS = (
    "ByteLevel",
    "WordPiece",
    "Metaspace",
    "BPEDecoder",
    "ByteFallback",
    "Fuse",
    "Strip",
    "Replace",
    "Sequence",
)
_NONE = ("truncation", "padding", "post_processor")
"""What a batch of texts would be made ready by; each text is encoded by itself here, and nothing is put around it."""
_TAIL = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_EXPRESSIONS = frozenset(
    (
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+" + _TAIL,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+" + _TAIL.replace("{1,3}", ""),
        " {2,}",
        r"\s+",
    )
)
"""Those of GPT-2, GPT-4 and Llama 3, Qwen 2, and of blanks."""


def read_tokenizer(folder: Path) -> tuple[Tokenizer, str]:
    """The tokenizer of a folder, without truncation and padding, and the sha256 of its file.

    Raises:
        ValueError: no such file, none of a tokenizer, or one with a part that is not allowed.
    """
    file = folder / NAME if folder.is_dir() else folder
    if not file.is_file():
        raise ValueError(f"{folder} holds no {NAME}, the file in which a ready-made tokenizer is kept")
    if file.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{file} is larger than {_MOST_BYTES >> 20} MiB")
    content = file.read_bytes()
    try:
        plain = json.loads(content)
        if not isinstance(plain, dict):
            raise TypeError(f"it holds a {type(plain).__name__}, expected an object")
        plain |= dict.fromkeys(_NONE)
        require_harmless(plain)
        made = Tokenizer.from_str(json.dumps(plain, ensure_ascii=False))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no tokenizer that can be used: {error!s:.300}") from None
    except Exception as error:  # which is the class of all that the library of tokenizers raises
        raise ValueError(f"{file} is no tokenizer: {error!s:.200}") from None
    made.encode_special_tokens = True
    return made, hashlib.sha256(content).hexdigest()


def require_harmless(plain: Mapping[str, Any]) -> None:
    """Refuse a tokenizer with a part that is not allowed by name, or with an expression of its own.

    Raises:
        TypeError, KeyError: naming the part.
    """
    if plain["model"]["type"] not in _MODELS:
        raise TypeError(f"it has a model of type {plain['model']['type']!r:.40}, expected {', '.join(_MODELS)}")
    for part in _NONE:
        if plain.get(part) is not None:
            raise TypeError(f"it has a {part}, expected none")
    _require("decoder", plain.get("decoder"), _DECODERS, "decoders")
    _require("normalizer", plain.get("normalizer"), _NORMALIZERS, "normalizers")
    _require("pre_tokenizer", plain.get("pre_tokenizer"), _PRE_TOKENIZERS, "pretokenizers")


def _require(part: str, plain: Any, allowed: tuple[str, ...], parts: str) -> None:
    if plain is None:
        return
    if plain["type"] not in allowed:
        raise TypeError(f"it has a {part} of type {plain['type']!r:.40}, expected one of {', '.join(allowed)}")
    expression = plain["pattern"].get("Regex") if isinstance(plain.get("pattern"), dict) else None
    if expression is not None and expression not in _EXPRESSIONS:
        raise TypeError(
            f"it has a {part} with the expression {expression!r:.80}, which is that of no model known here and might "
            "be tried on a text for hours"
        )
    for each in plain.get(parts, ()):
        _require(part, each, allowed, parts)
