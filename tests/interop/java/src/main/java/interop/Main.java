package interop;

import java.util.Map;
import java.util.TreeMap;

import org.apache.rocketmq.common.MQVersion;

/** Runs one scenario: Main SCENARIO NAMESRV NAME [ARGUMENT]. The scenarios are described in ../../README.md. */
public final class Main {
    /** One scenario. */
    interface Scenario {
        void run(Scene scene) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = new TreeMap<>(Map.ofEntries(
        Map.entry("send", Sending::run),
        Map.entry("push", Pushing::push),
        Map.entry("broadcast", Pushing::broadcast),
        Map.entry("orderly", Pushing::orderly),
        Map.entry("tags", Pushing::tags),
        Map.entry("sql", Pushing::sql),
        Map.entry("start", Pushing::start),
        Map.entry("retry", Retrying::concurrent),
        Map.entry("retry-orderly", Retrying::orderly),
        Map.entry("pull", Pulling::pull),
        Map.entry("lite-pull", Pulling::litePull),
        Map.entry("reset", Admins::reset),
        Map.entry("recreated", Recreating::run),
        Map.entry("lookup", Admins::lookup),
        Map.entry("admin", Admins::calls),
        Map.entry("mqadmin", Tool::run),
        Map.entry("delays", Delaying::run),
        Map.entry("transactions", Transactions::run),
        Map.entry("request-reply", Requesting::run),
        Map.entry("trace", Tracing::run),
        Map.entry("load", Loading::concurrent),
        Map.entry("load-orderly", Loading::ordered),
        Map.entry("load-delays", scene -> new Delaying.Load(scene).run()),
        Map.entry("load-transactions", scene -> new Transactions.Load(scene).run()),
        Map.entry("load-requests", scene -> new Requesting.Load(scene).run()),
        Map.entry("load-trace", scene -> new Tracing.Load(scene).run())));

    private Main() {
    }

    /** What the library has from version 5 on; with an older one these classes are not compiled. */
    @SuppressWarnings("unchecked")
    private static void addNewer() throws ReflectiveOperationException {
        Class<?> newer;
        try {
            newer = Class.forName("interop.Newer");
        } catch (ClassNotFoundException missing) {
            return;
        }
        SCENARIOS.putAll((Map<String, Scenario>) newer.getDeclaredField("SCENARIOS").get(null));
    }

    public static void main(String[] arguments) {
        int status = 0;
        try {
            addNewer();
            Scenario scenario = SCENARIOS.get(arguments[0]);
            if (scenario == null) {
                throw new IllegalArgumentException(arguments[0] + " is none of " + SCENARIOS.keySet());
            }
            Out.event("client", "version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION),
                "runtime", "Java " + Runtime.version().feature());
            scenario.run(new Scene(arguments[1], arguments[2]));
            Out.event("done");
        } catch (Throwable error) {
            error.printStackTrace();
            Out.event("failed", "why", error + (error.getCause() == null ? "" : ": " + error.getCause()));
            status = 1;
        }
        // The clients leave threads behind that are no daemons.
        Runtime.getRuntime().halt(status);
    }
}
