"""A tokenizer from a local folder: its own tokens, our kept codes, and nothing in it that could hang a reader."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from quantattn.data.filings.marks import MARKS, OUTSIDE
from quantattn.data.filings.tokenizer import RESERVED, FilingTokenizer

WORDS = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "net", "sales", "ro", "##se", "fell", "[", "]", "cl", "##s", "mask", "."]


def of_words() -> Tokenizer:
    """As BERT has one: lower case, WordPiece, [CLS] and [SEP] around a text, cut and padded."""
    made = Tokenizer(models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    made.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:4]])
    made.enable_truncation(4)
    made.enable_padding(length=8)
    return made


def of_bytes(expression: str | None) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={each: n for n, each in enumerate(alphabet)}, merges=[]))
    parts = [] if expression is None else [pre_tokenizers.Split(Regex(expression), "isolated")]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=expression is None)
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence([*parts, last]), decoders.ByteLevel()
    return made


def put(folder: Path, made: Tokenizer, change: Callable[[dict[str, Any]], object] | None = None) -> Path:
    plain = json.loads(made.to_str())
    if change is not None:
        change(plain)
    (folder / "tokenizer.json").write_text(json.dumps(plain))
    return folder


def test_a_tokenizer_of_words(tmp_path: Path) -> None:
    folder = put(tmp_path, of_words())
    tokenizer = FilingTokenizer.of_folder(folder, marks=MARKS)
    text = "Net sales rose. Net sales fell. Net sales rose."
    (codes,) = tokenizer.encode_all([text], [[(0, OUTSIDE)]])
    assert codes[0] == RESERVED + len(WORDS) + MARKS.index(OUTSIDE)
    assert [WORDS[code - RESERVED] for code in codes[1:6]] == ["net", "sales", "ro", "##se", "."]
    assert len(codes) == 15  # whole: neither cut to 4 nor padded, and nothing put around it
    assert tokenizer.decode(codes[1:6]) == "net sales rose."
    assert tokenizer.codes == {"token": RESERVED + len(WORDS) + len(MARKS)}
    assert (tokenizer.ready_made, tokenizer.fitted_rows) == (True, 0)
    assert tokenizer.training_sha256 == hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    again = FilingTokenizer.from_json(tokenizer.to_json())
    assert again.to_json() == tokenizer.to_json()
    assert again.encode("[MASK] net [CLS]").tolist() == tokenizer.encode("[MASK] net [CLS]").tolist()


def test_a_special_token_in_a_text_is_ordinary_text(tmp_path: Path) -> None:
    tokenizer = FilingTokenizer.of_folder(put(tmp_path, of_words()))
    words = [WORDS[code - RESERVED] for code in FilingTokenizer.from_json(tokenizer.to_json()).encode("[MASK] [CLS]")]
    assert words == ["[", "mask", "]", "[", "cl", "##s", "]"]


LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize("expression", [None, LLAMA])
def test_tokenizers_of_bytes_lose_nothing(tmp_path: Path, expression: str | None) -> None:
    tokenizer = FilingTokenizer.of_folder(put(tmp_path, of_bytes(expression)))
    text = "Net sales\t$391,035 «rose»\n\n 12%"
    assert tokenizer.decode(tokenizer.encode(text)) == text


HOURS = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.update(normalizer=HOURS), r"a normalizer with the expression '\(a\+\)\+\$'"),
        (
            lambda p: p.update(normalizer={"type": "Sequence", "normalizers": [HOURS]}),
            "a normalizer with the expression",
        ),
        (lambda p: p.update(decoder=HOURS), "a decoder with the expression"),
        (lambda p: p["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "(a+)+$"}), "a pre_tokenizer with"),
        (lambda p: p["pre_tokenizer"]["pretokenizers"][0].update(type="Custom"), "a pre_tokenizer of type 'Custom'"),
        (lambda p: p["model"].update(type="Lua"), "a model of type 'Lua', expected BPE, WordPiece"),
        (lambda p: p.pop("model"), "no tokenizer that can be used: 'model'"),
        (lambda p: p["model"].update(vocab=3), "is no tokenizer"),
    ],
)
def test_a_part_that_is_not_allowed_is_refused_from_a_folder_and_from_an_artefact(
    tmp_path: Path, change: Callable[[Any], Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        FilingTokenizer.of_folder(put(tmp_path, of_bytes(LLAMA), change))
    plain = json.loads(FilingTokenizer.of_folder(put(tmp_path, of_bytes(LLAMA))).to_json())
    change(plain["bpe"])
    with pytest.raises(ValueError, match=r"is no vocabulary that a run writes|not a filing tokenizer: bpe is none"):
        FilingTokenizer.from_json(json.dumps(plain))


def test_what_is_no_such_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json"):
        FilingTokenizer.of_folder(tmp_path)
    for content in ("", "[]", '"{}"', "{", "[" * 100_000):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer"):
            FilingTokenizer.of_folder(tmp_path)
