for (int i = 0; i < @N; i += @STEP) { @BODY; }
