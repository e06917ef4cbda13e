package interop;

import java.util.Map;

/** The scenarios that need version 5 of the library. Like the classes it names, it is not compiled with version 4. */
final class Newer {
    static final Map<String, Main.Scenario> SCENARIOS = Map.of(
        "timers", Timing::timers,
        "recall", Timing::recall,
        "load-timers", scene -> new Timing.Load(scene).run(),
        "pop", Popping::run,
        "load-pop", scene -> new Popping.Load(scene).run());

    private Newer() {
    }
}
