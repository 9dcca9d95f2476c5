from mini.lower import cache, lower
