package interop;

import java.util.Map;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** What requests are signed with: keys from the environment, or null for clients of a cluster without accounts. */
final class Keys {
    private Keys() {
    }

    /** Those of a client that sends and consumes. */
    static RPCHook ofClients() {
        return hook("INTEROP_ACCESS_KEY", "INTEROP_SECRET_KEY");
    }

    /** Those of an administrator. mqadmin takes the same ones from its own file. */
    static RPCHook ofAdministrators() {
        return hook("INTEROP_ADMIN_ACCESS_KEY", "INTEROP_ADMIN_SECRET_KEY");
    }

    private static RPCHook hook(String accessKey, String secretKey) {
        Map<String, String> given = System.getenv();
        return given.containsKey(accessKey)
            ? new AclClientRPCHook(new SessionCredentials(given.get(accessKey), given.get(secretKey))) : null;
    }
}
