"""`python -m tidegauge …`, the same program as the console script."""

from tidegauge.cli import main

if __name__ == "__main__":
    main()
