import cachec

cache = cachec.Cache()
