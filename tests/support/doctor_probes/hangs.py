"""Never answers, and has a child that would outlive it."""

import subprocess
import sys
import time

child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
time.sleep(300)
