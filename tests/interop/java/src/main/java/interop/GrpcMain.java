package interop;

import java.util.Map;

/** Runs one scenario with RocketMQ's gRPC client: GrpcMain SCENARIO ADDRESS NAME. See ../../README.md. */
public final class GrpcMain {
    /** One scenario. */
    interface Scenario {
        void run(GrpcScene scene) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = Map.of(
        "grpc-send", GrpcScenarios::send,
        "grpc-simple", GrpcScenarios::simple,
        "grpc-push", GrpcScenarios::push,
        "grpc-fifo", GrpcScenarios::fifo,
        "grpc-filter", GrpcScenarios::filter,
        "grpc-delay", GrpcScenarios::delay,
        "grpc-recall", GrpcScenarios::recall,
        "grpc-transactions", GrpcScenarios::transactions,
        "grpc-load", GrpcLoad::run);

    private GrpcMain() {
    }

    public static void main(String[] arguments) {
        int status = 0;
        try {
            Out.event("client", "version", "rocketmq-client-java " + System.getProperty("interop.version"),
                "runtime", "Java " + Runtime.version().feature());
            SCENARIOS.get(arguments[0]).run(new GrpcScene(arguments[1], arguments[2]));
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
