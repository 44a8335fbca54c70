"""``python -m dsacp.app``, which ``torchrun -m`` needs."""

from dsacp.app.cli import main

if __name__ == "__main__":
    main()
