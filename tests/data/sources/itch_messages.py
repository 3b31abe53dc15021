"""ITCH messages packed by hand after the specification, and a reader of them that is a loop and a dict."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable

LENGTHS = {"S": 12, "R": 39, "H": 25, "Y": 20, "L": 26, "V": 35, "W": 12, "K": 28, "J": 35, "h": 21, "A": 36, "F": 40}
LENGTHS |= {"E": 31, "C": 36, "X": 23, "D": 19, "U": 35, "P": 44, "Q": 40, "B": 19, "I": 50, "N": 20, "O": 48}
MIDNIGHT = 1_340_251_200 * 10**9  # 2012-06-21 00:00 in New York is 04:00 UTC


def message(code: str, locate: int, time: int, body: bytes) -> bytes:
    made = code.encode() + struct.pack(">HH", locate, 0) + time.to_bytes(6, "big") + body
    assert len(made) == LENGTHS[code]
    return made


def stock(name: str) -> bytes:
    return name.encode().ljust(8)


def framed(messages: Iterable[bytes], zeros: bool = False) -> bytes:
    return b"".join((b"\0\0" if zeros else struct.pack(">H", len(made))) + made for made in messages)


def add(locate: int, time: int, number: int, side: str, shares: int, name: str, price: int) -> bytes:
    body = struct.pack(">Q1sI8sI", number, side.encode(), shares, stock(name), price)
    return message("A", locate, time, body)


def session(n: int, seed: int) -> list[bytes]:
    """A sound session of two stocks: every type, every order known."""
    rng, names, time, number, match = random.Random(seed), {1: "AAA", 2: "BB.C"}, 10**9, 0, 0
    found = [message("S", 0, time, b"O")]
    for locate, name in names.items():
        found.append(message("R", locate, time, stock(name) + b"QN" + struct.pack(">I", 100) + b"NCZ PNN1N" + bytes(5)))
        found.append(message("H", locate, time, stock(name) + b"T     "))
    standing: dict[int, list[int]] = {}
    for _ in range(n):
        time += rng.choice([0, 0, 1, 1000, 10**6])
        locate = rng.choice([1, 2])
        own = [key for key, value in standing.items() if value[0] == locate]
        what = rng.choice("AAAFECXDUPQHI") if own else rng.choice("AFPI")
        if what in "AF":
            number += 1
            side, price, shares = rng.choice("BS"), 0, rng.randrange(1, 500)
            price = 100_000 + 100 * rng.randrange(1, 9) * (1 if side == "S" else -1)
            made = add(locate, time, number, side, shares, names[locate], price)
            found.append(made if what == "A" else message("F", locate, time, made[11:] + b"MPID"))
            standing[number] = [locate, shares]
        elif what in "ECXDU":
            order = rng.choice(own)
            left = standing[order][1]
            part, match = rng.randrange(1, left + 1), match + 1
            key = struct.pack(">Q", order)
            if what == "D":
                found.append(message("D", locate, time, key))
                part = left
            elif what == "U":
                number += 1
                price = 100_000 + 100 * rng.randrange(-8, 9)
                found.append(message("U", locate, time, key + struct.pack(">QII", number, part, price)))
                standing[number] = [locate, part]
                part = left
            else:
                body = key + struct.pack(">I", part)
                body += struct.pack(">Q", match) if what in "EC" else b""
                body += b"N" + struct.pack(">I", 100_050) if what == "C" else b""
                found.append(message(what, locate, time, body))
            standing[order][1] -= part
            if not standing[order][1]:
                del standing[order]
        elif what == "P":
            body = struct.pack(">Q1sI8sIQ", 0, b"B", 7, stock(names[locate]), 100_025, match)
            found.append(message("P", locate, time, body))
        elif what == "Q":
            found.append(message("Q", locate, time, struct.pack(">Q8sIQ1s", 2**40, stock(names[locate]), 5, 1, b"O")))
        elif what == "H":
            found.append(message("H", locate, time, stock(names[locate]) + rng.choice([b"H", b"T", b"Q"]) + b"     "))
        else:
            body = struct.pack(">QQ1s8sIII", 1, 2, b"B", stock(names[locate]), 3, 4, 5) + b"OL"
            found.append(message("I", locate, time, body))
    return found


def literal(messages: list[bytes]) -> dict[str, list[tuple[object, ...]]]:
    """Rows of each stock (time, kind, side, price, size, order number, best ask and bid), one message at a time."""
    names = {1: "AAA", 2: "BB.C"}
    orders: dict[int, list[int]] = {}
    rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in names.values()}
    for made in messages:
        code, body = chr(made[0]), made[11:]
        (locate,), time = struct.unpack(">H", made[1:3]), int.from_bytes(made[5:11], "big")

        def note(kind: int, side: int, price: int | None, size: int, number: int) -> None:
            best: list[int | None] = []
            for way in (-1, 1):
                prices = [o[2] * way for o in orders.values() if o[0] == locate and o[1] == way]  # noqa: B023
                at = max(prices) * way if prices else None
                here = [o[3] for o in orders.values() if (o[0], o[1], o[2]) == (locate, way, at)]  # noqa: B023
                best += [at, sum(here)]
            rows[names[locate]].append((MIDNIGHT + time, kind, side, price, size, number, *best))  # noqa: B023

        if code in "AF":
            number, way, shares, _, price = struct.unpack(">Q1sI8sI", body[:25])
            orders[number] = [locate, 1 if way == b"B" else -1, price, shares]
            note(1, orders[number][1], price, shares, number)
        elif code in "ECXDU":
            number = int.from_bytes(body[:8], "big")
            _, side, price, left = orders[number]
            taken = left if code in "DU" else int.from_bytes(body[8:12], "big")
            orders[number][3] -= taken
            if not orders[number][3]:
                del orders[number]
            own = int.from_bytes(body[21:25], "big") if code == "C" else price
            note({"E": 4, "C": 4, "X": 2}.get(code, 3), side, own, taken, number)
            if code == "U":
                new, shares, price = struct.unpack(">QII", body[8:])
                orders[new] = [locate, side, price, shares]
                note(1, side, price, shares, new)
        elif code == "P":
            note(5, 0, 100_025, 7, 0)
        elif code == "Q":
            note(6, 0, 5, 2**40, 0)
        elif code == "H":
            note(7, 0, None, 0, 0)
    return rows
