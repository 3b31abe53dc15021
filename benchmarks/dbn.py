"""Seconds and peak memory of reading Databento orders, beside the vendor's own client, in one run on one core.

    python benchmarks/dbn.py FILE.mbo.dbn.zst [--times 300]

The records of the file are repeated by the vendor's encoder, each time later by the length of the file, and every
reader runs in a process of its own. Ours also rebuilds the book after every record. `pip install databento` for the
client; the arrival, price, size and number of all new orders must be the same (sha256).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import databento_dbn as dbn
import numpy as np
import zstandard

READERS = {
    "quantattn: scan_dbn, book of 1 level": "ours",
    "databento: to_df": "vendor",
    "databento: to_df of integers, no names": "integers",
}


def repeat(path: Path, times: int, out: Path) -> int:
    """Write the records `times` times; returns how many."""
    with path.open("rb") as packed:
        data = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
    start = 8 + int.from_bytes(data[4:8], "little")
    records = np.frombuffer(data[start:], dbn.MBOMsg._dtypes)
    span = np.uint64(int(records["ts_recv"].max()) - int(records["ts_recv"].min()) + 10**9)
    with out.open("wb") as file:
        coder = dbn.Transcoder(file, dbn.Encoding.DBN, dbn.Compression.ZSTD)
        coder.write(dbn.Metadata.decode(data[:start]).encode())
        for number in range(times):
            later = records.copy()
            later["ts_recv"] += np.uint64(number) * span
            later["ts_event"] += np.uint64(number) * span
            coder.write(later.tobytes())
            coder.flush()
        coder.finish()
    return len(records) * times


def read(kind: str, path: Path) -> tuple[np.ndarray, ...]:
    """Arrival, price, size and number of the new orders."""
    if kind == "ours":
        import polars as pl

        from quantattn.data.sources import scan_dbn

        frame = scan_dbn(path, levels=1).frame.collect()
        # A modified order is a deletion and a new one, which the vendor has as one record.
        new = frame.filter((pl.col("kind") == 1) & (pl.col("kind").shift(1, fill_value=0) != 3))
        return tuple(new[name].to_numpy() for name in ("available_time", "price", "size", "order_id"))
    import databento

    store = databento.DBNStore.from_file(path)
    if kind == "integers":
        table = store.to_df(price_type="fixed", pretty_ts=False, map_symbols=False)
    else:
        table = store.to_df()
    new = table[table["action"] == "A"]
    price = new["price"].to_numpy()
    if kind == "integers":
        arrival = new.index.to_numpy()
    else:
        arrival, price = new.index.as_unit("ns").asi8, np.round(price * 1e9)
    return arrival, price, new["size"].to_numpy(), new["order_id"].to_numpy()


def once(kind: str, path: Path, warm: Path) -> None:
    """Read a small file first, so that imports and compilation are not timed, then the large one."""
    read(kind, warm)
    began = time.perf_counter(), time.process_time()
    columns = read(kind, path)
    seconds, busy = time.perf_counter() - began[0], time.process_time() - began[1]
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(column, np.int64).tobytes() for column in columns))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"seconds": seconds, "busy": busy, "peak_mib": peak, "sha256": digest.hexdigest()[:16]}))


def main() -> None:
    """Print one row a reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--once", choices=READERS.values(), help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        once(given.once, given.file, given.warm)
        return
    one_core = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.mbo.dbn.zst"
        records = repeat(given.file, given.times, large)
        print(f"{records:,} records, {large.stat().st_size:,} bytes")
        for name, kind in READERS.items():
            call = [sys.executable, __file__, str(large), "--once", kind, "--warm", str(given.file)]
            done = subprocess.run(call, capture_output=True, text=True, check=True, env=os.environ | one_core)
            row = json.loads(io.StringIO(done.stdout).readlines()[-1])
            print(
                f"{name:40} {row['seconds']:7.2f} s, of processor {row['busy']:7.2f} s "
                f"{records / row['busy'] / 1e6:6.2f} M/s "
                f"{row['peak_mib']:6,} MiB  {row['sha256']}"
            )


if __name__ == "__main__":
    main()
