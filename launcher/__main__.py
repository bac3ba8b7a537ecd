"""`python -m launcher`: the same as `launch`, for machines where that is not on PATH."""

from __future__ import annotations

from launcher.cli.main import main

if __name__ == "__main__":
    main()
