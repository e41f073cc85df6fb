"""The command line: each command parses, calls one public function and writes files.

Nothing heavy is imported before a command runs, so that ``huefield --help`` answers at once.
"""

from huefield.cli.main import main as main
