import zipfile


def write(path, files):
    with zipfile.ZipFile(path, "w") as bundle:
        for name, text in files.items():
            bundle.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text)


write("ops.zip", {"MANIFEST": "relu\nconv\n", "relu": "relu: 1\n", "conv": "conv: 9\n"})
write("plugin.zip", {"plugin.py": "FACTOR = 10\n\n\ndef scale(x):\n    return x * FACTOR\n"})
