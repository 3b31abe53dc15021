"""What a run writes down of its settings has no password in it."""

from __future__ import annotations

import pytest

from quantattn.learn.folder import redact


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
