"""``python -m deepinsight`` is ``deepinsight``."""

import sys

from deepinsight.cli import main

sys.exit(main())
