"""`python -m bellglass.cli`."""

import sys

from bellglass.cli import main

sys.exit(main())
