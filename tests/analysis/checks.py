"""What a script checks, counted; the last line says how many passed."""
passed = failed = 0


def check(name, good, detail=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAILED {name}: {str(detail)[:3000]}")


def end():
    """Prints the counts. Returns the exit code."""
    print(f"{passed} passed, {failed} failed")
    return failed > 0
