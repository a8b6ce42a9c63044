"""`python -m riverrun` is `riverrun`."""

from riverrun.cli.main import main

if __name__ == "__main__":
    main()
