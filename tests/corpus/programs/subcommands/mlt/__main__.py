from mlt.cli import main

main()
