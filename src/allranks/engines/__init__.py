"""Where jobs run: one protocol, one file per engine. An engine never decides an outcome."""
