"""`python -m frozenprobe`, and so `torchrun --nproc-per-node 8 -m frozenprobe`."""

from frozenprobe.cli.main import main

if __name__ == "__main__":
    main()
