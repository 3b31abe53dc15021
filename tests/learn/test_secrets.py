"""What a run writes down of its settings has no password in it."""

from __future__ import annotations

import pytest

from quantattn.learn.secrets import redact, redact_text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pass@host/db", "postgresql://***@host/db"),
        ("postgresql://me:p/a@s:s@host/db", "postgresql://***@host/db"),
        ("mysql+pymysql://token@host:3306/db", "mysql+pymysql://***@host:3306/db"),
        (
            "postgresql://host/db?user=me&password=pass&sslmode=on",
            "postgresql://host/db?user=me&password=***&sslmode=on",
        ),
        ("postgresql://host/db?sslpassword=pass", "postgresql://host/db?sslpassword=***"),
        ("sqlite:////data/study.db", "sqlite:////data/study.db"),
        ("https://host/path@2", "https://host/path@2"),
    ],
)
def test_urls_keep_all_but_who_and_with_which_password(url: str, shown: str) -> None:
    assert redact({"sweep": {"storage": url}}) == {"sweep": {"storage": shown}}
    assert redact([f"sweep.storage={url}"], "") == [f"sweep.storage={shown}"]


TEXTS = {
    "storage: postgresql://me:pass@host/db": "storage: postgresql://***@host/db",
    "    api_key: hunter2 and more": "    api_key: '***'",
    "    api_key: null": "    api_key: null",
    "- logger.wandb.api_key=hunter2": "- logger.wandb.api_key='***'",
    "'+logger.mlflow.password=my hunter2'": "'+logger.mlflow.password='***'",
    "logger.wandb={project: a, api_key: hunter2, b: c}": "logger.wandb={project: a, api_key: '***', b: c}",
    "logger.wandb={'token': \"hunter 2\"}": "logger.wandb={'token': '***'}",
    "a:\n  token:\n    b: hunter2\n    c:\n    - hunter2\n  d: 1": "a:\n  token: '***'\n  d: 1",
    "token:\n- hunter2\n- hunter2\nd: 1": "token: '***'\nd: 1",
    "    api_key: |\n      hunter2\n      and more": "    api_key: '***'",
    "max_tokens_per_batch: 8192": "max_tokens_per_batch: 8192",
    "data.max_tokens_per_batch=auto": "data.max_tokens_per_batch=auto",
    "monkey: 1": "monkey: 1",
    "author: me": "author: me",
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_settings_is_that_of_the_settings_without_passwords(text: str) -> None:
    assert redact_text(text) == TEXTS[text]
    assert redact_text(f"seed: 0\n{text}\nseed: 1\n") == f"seed: 0\n{TEXTS[text]}\nseed: 1\n"


NAMES = ["password", "sql_password", "api_key", "APIKEY", "my.access_key", "auth", "credentials", "x.token"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_secret_in_text_when_it_is_in_settings(name: str) -> None:
    assert redact({name: "hunter2", f"{name}s_": "hunter2"}) == {name: "***", f"{name}s_": "hunter2"}
    assert "hunter2" not in redact_text(f"a.{name}=hunter2") + redact_text(f"{name}: hunter2")
    assert redact_text(f"{name}s_: hunter2") == f"{name}s_: hunter2"


@pytest.mark.parametrize("name", NAMES)
def test_all_that_stands_below_a_secret_name_is_secret(name: str) -> None:
    given = {name: {"a": "hunter2", "b": [{"c": "hunter2"}, None]}, "d": {"a": "open"}}
    assert redact(given) == {name: {"a": "***", "b": [{"c": "***"}, None]}, "d": {"a": "open"}}
