"""``python -m huefield``."""

from huefield.cli import main

if __name__ == "__main__":
    main()
