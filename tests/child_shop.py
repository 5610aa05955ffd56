"""Hold slots of a server, and ask for one more, until killed: `python child_shop.py URL RUN_DIR PRODUCTS SLOTS`."""

import sys
import threading
from pathlib import Path

from shopskill_lib.shops.catalog import load_catalogue
from shopskill_lib.shops.shopsimulator import connect

url, folder, products, slots = sys.argv[1:]
shop = connect(url, load_catalogue(Path(products)), Path(folder), threads=8)
task = shop.catalogue.tasks["1830"]
held = [shop.reset(task) for _ in range(int(slots))]
sys.stdout.write("held\n")
sys.stdout.flush()
threading.Thread(target=shop.reset, args=(task,)).start()
threading.Event().wait(60)
