"""Print a command of the README: the `console` block that follows the comment `<!-- command: NAME -->`."""

import re
import sys
from pathlib import Path

readme = Path(__file__).resolve().parent.parent / "README.md"
found = re.search(rf"<!-- command: {sys.argv[1]} -->\s*```console\n\$ (.*?)\n```", readme.read_text(), re.DOTALL)
if found is None:
    sys.exit(f"README.md has no command named {sys.argv[1]}")
print(found[1])
