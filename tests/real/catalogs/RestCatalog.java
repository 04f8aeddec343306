import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** Iceberg's REST catalog over SQLite, on loopback: its own main class listens on all addresses. */
public final class RestCatalog {
  public static void main(String[] arguments) throws Exception {
    var port = Integer.parseInt(arguments[0]);
    var properties =
        new HashMap<String, String>(
            Map.of(
                "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri", "jdbc:sqlite:" + arguments[1] + "?busy_timeout=10000",
                "jdbc.schema-version", "V1",
                "warehouse", arguments[2]));
    for (var more = 3; more < arguments.length; more += 2) {
      properties.put(arguments[more], arguments[more + 1]);
    }
    var catalog = CatalogUtil.buildIcebergCatalog("rest", properties, new Configuration());
    var context = new ServletContextHandler();
    context.addServlet(
        new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    var server = new Server(new InetSocketAddress("127.0.0.1", port));
    server.setHandler(context);
    server.start();
    server.join();
  }
}
