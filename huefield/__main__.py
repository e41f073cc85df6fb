"""``python -m huefield``."""

from huefield.apps.cli import main

if __name__ == "__main__":
    main()
