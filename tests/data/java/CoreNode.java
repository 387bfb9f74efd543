import java.util.List;
import org.apache.ignite.Ignite;
import org.apache.ignite.Ignition;
import org.apache.ignite.configuration.ClientConnectorConfiguration;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.spi.communication.tcp.TcpCommunicationSpi;
import org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi;
import org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder;

/** A node of nothing but Ignite's core, so without SQL: PORT FOLDER. It ends with its input. */
public class CoreNode {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        TcpDiscoverySpi discovery = new TcpDiscoverySpi().setLocalPort(port + 1);
        discovery.setLocalPortRange(0);
        discovery.setIpFinder(
            new TcpDiscoveryVmIpFinder().setAddresses(List.of("127.0.0.1:" + (port + 1))));
        TcpCommunicationSpi communication = new TcpCommunicationSpi();
        communication.setLocalPort(port + 2);
        Ignite ignite = Ignition.start(new IgniteConfiguration()
            .setLocalHost("127.0.0.1")
            .setWorkDirectory(args[1])
            .setDiscoverySpi(discovery)
            .setCommunicationSpi(communication)
            .setClientConnectorConfiguration(new ClientConnectorConfiguration()
                .setHost("127.0.0.1").setPort(port).setPortRange(0)));
        System.out.println("READY " + ignite.version());
        while (System.in.read() >= 0) {
        }
        Ignition.stopAll(true);
    }
}
