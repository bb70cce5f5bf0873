"""How many lines of the kernels ran in a library that was built for gcov, and which did not.

python tests/kernels/every/lines_run.py BUILD, where BUILD has the counts of the runs.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

LEAST = 98.0
"""Per cent of the lines that are to run."""


def counts(build: Path) -> dict[str, dict[int, int]]:
    """How often each line of each file of the kernels ran, all of its instances together."""
    found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for data in sorted(build.rglob("*.gcda")):
        command = ["gcov", "--json-format", "--stdout", data]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for report in filter(None, output.splitlines()):
            for file in json.loads(report)["files"]:
                if "kernels/cpu/" in file["file"]:
                    lines = found[file["file"].rpartition("kernels/cpu/")[2]]
                    for line in file["lines"]:
                        lines[line["line_number"]] += line["count"]
    return found


def main() -> int:
    found = counts(Path(sys.argv[1]))
    for file, lines in sorted(found.items()):
        missed = [line for line, count in sorted(lines.items()) if not count]
        if missed:
            sys.stdout.write(f"{file}: {', '.join(map(str, missed))}\n")
    every = [count for lines in found.values() for count in lines.values()]
    ran = 100 * sum(count > 0 for count in every) / max(len(every), 1)
    sys.stdout.write(f"{ran:.1f} % of {len(every)} lines ran; {LEAST} % are asked for\n")
    return int(ran < LEAST)


if __name__ == "__main__":
    sys.exit(main())
